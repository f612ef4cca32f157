-- found
WITH
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS queue,
            json_extract(given_rows.value, '$[1]') AS partition_key
        FROM json_each(:given) AS given_rows
    ),
    running AS MATERIALIZED (
        SELECT at_work.queue AS queue, at_work.partition_key AS partition_key, count(*) AS tasks
        FROM task_executions AS at_work
        WHERE
            at_work.id IN (
                SELECT leased.task_execution_id
                FROM (
                    SELECT task_leases.task_execution_id AS task_execution_id
                    FROM task_leases
                    JOIN given ON task_leases.queue = given.queue
                ) AS leased
            )
            AND substr(at_work.partition_key, 1, 12) = 'concurrency:'
        GROUP BY at_work.queue, at_work.partition_key
    )
SELECT
    given.partition_key,
    queue_settings.queue,
    queue_settings.key_concurrency,
    queue_settings.key_rate_limit,
    queue_settings.key_rate_seconds,
    coalesce(running.tasks, 0) AS running,
    (
        SELECT key_rates.full_at
        FROM key_rates
        WHERE key_rates.queue = given.queue AND key_rates.partition_key = given.partition_key
    ) AS full_at
FROM given
JOIN queue_settings ON queue_settings.queue = given.queue
    AND (queue_settings.key_concurrency IS NOT NULL OR queue_settings.key_rate_limit IS NOT NULL)
LEFT OUTER JOIN running ON running.queue = given.queue AND running.partition_key = given.partition_key
