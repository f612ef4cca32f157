WITH RECURSIVE
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    ),
    pairs(queue, priority) AS (/* live.pairs-1: param_1, param_2, anon_1 */)
SELECT
    named.queue,
    named.task_name,
    count(*) FILTER (WHERE named.available_at <= (SELECT clock.now FROM clock)) AS due,
    count(*) FILTER (WHERE named.available_at > (SELECT clock.now FROM clock)) AS later,
    count(*) FILTER (WHERE named.retry_at IS NOT NULL) AS retrying,
    min(named.available_at) FILTER (WHERE named.available_at <= (SELECT clock.now FROM clock)) AS oldest_due_at
FROM (
    SELECT
        found.queue AS queue,
        (
            SELECT execution.task_name
            FROM task_executions AS execution
            WHERE execution.id = found.id
        ) AS task_name,
        found.available_at AS available_at,
        CASE
            WHEN (found.available_at > (SELECT clock.now FROM clock)) THEN (
                SELECT execution.retry_at
                FROM task_executions AS execution
                WHERE execution.id = found.id
            )
            ELSE NULL
        END AS retry_at
    FROM (
        SELECT
            plain_due.queue AS queue,
            plain_due.available_at AS available_at,
            plain_due.task_execution_id AS id
        FROM pairs
        JOIN LATERAL (/* live.plain_due-1 */) AS plain_due ON true
        UNION ALL
        SELECT
            plain_later.queue AS queue,
            plain_later.available_at AS available_at,
            plain_later.task_execution_id AS id
        FROM pairs
        JOIN LATERAL (/* live.plain_later-1 */) AS plain_later ON true
        UNION ALL
        SELECT
            keyed_due.queue AS queue,
            keyed_due.available_at AS available_at,
            keyed_due.task_execution_id AS id
        FROM queues
        JOIN LATERAL (/* live.keyed_due-1 */) AS keyed_due ON true
        UNION ALL
        SELECT
            keyed_later.queue AS queue,
            keyed_later.available_at AS available_at,
            keyed_later.task_execution_id AS id
        FROM queues
        JOIN LATERAL (
            SELECT
                keyed_later_entry.queue AS queue,
                keyed_later_entry.available_at AS available_at,
                keyed_later_entry.task_execution_id AS task_execution_id
            FROM task_outbox AS keyed_later_entry
            WHERE
                keyed_later_entry.queue = queues.queue
                AND keyed_later_entry.partition_key IS NOT NULL
                AND keyed_later_entry.available_at > (SELECT clock.now FROM clock)
            ORDER BY keyed_later_entry.available_at, keyed_later_entry.id
            LIMIT %(most)s::BIGINT
        ) AS keyed_later ON true
    ) AS found
) AS named
WHERE named.task_name IS NOT NULL
GROUP BY named.queue, named.task_name
