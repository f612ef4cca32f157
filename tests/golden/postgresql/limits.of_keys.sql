WITH
    given AS (
        SELECT batch.queue AS queue, batch.partition_key AS partition_key, batch.ordinal AS ordinal
        FROM unnest(%(given_queue)s::TEXT[], %(given_partition_key)s::TEXT[]) WITH ORDINALITY AS batch(
            queue,
            partition_key,
            ordinal
        )
    ),
    running AS MATERIALIZED (
        SELECT at_work.queue AS queue, at_work.partition_key AS partition_key, count(*) AS tasks
        FROM task_executions AS at_work
        WHERE
            at_work.id = any(
                array(
                    (
                        SELECT leased.task_execution_id
                        FROM (
                            SELECT task_leases.task_execution_id AS task_execution_id
                            FROM task_leases
                            JOIN given ON task_leases.queue = given.queue
                        ) AS leased
                    )
                )
            )
            AND substr(at_work.partition_key, 1, 12) = 'concurrency:'
        GROUP BY at_work.queue, at_work.partition_key
    ),
    found AS MATERIALIZED (
        SELECT
            given.partition_key AS partition_key,
            queue_settings.queue AS queue,
            queue_settings.key_concurrency AS key_concurrency,
            queue_settings.key_rate_limit AS key_rate_limit,
            queue_settings.key_rate_seconds AS key_rate_seconds,
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
    )
SELECT
    found.partition_key,
    found.queue,
    found.key_concurrency,
    found.key_rate_limit,
    found.key_rate_seconds,
    found.running,
    found.full_at
FROM found
