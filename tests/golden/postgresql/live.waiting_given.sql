WITH RECURSIVE
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    ),
    pairs(queue, priority) AS (/* live.pairs-1: param_2, param_3, anon_1 */)
SELECT found.queue, found.due, found.later, found.retrying, found.oldest_due_at
FROM (
    SELECT
        pairs.queue AS queue,
        (
            SELECT count(*) AS count_1
            FROM (
                SELECT 1 AS one
                FROM task_outbox AS entry
                WHERE
                    entry.queue = pairs.queue
                    AND entry.partition_key IS NULL
                    AND entry.priority = pairs.priority
                    AND entry.available_at <= (SELECT clock.now FROM clock)
                LIMIT %(most)s::BIGINT
            ) AS "some"
        ) AS due,
        (
            SELECT count(*) AS count_2
            FROM (
                SELECT 1 AS one
                FROM task_outbox AS entry
                WHERE
                    entry.queue = pairs.queue
                    AND entry.partition_key IS NULL
                    AND entry.priority = pairs.priority
                    AND entry.available_at > (SELECT clock.now FROM clock)
                LIMIT %(most)s::BIGINT
            ) AS "some"
        ) AS later,
        (/* live.retrying-1: count_3 */) AS retrying,
        (
            SELECT entry.available_at
            FROM task_outbox AS entry
            WHERE
                entry.queue = pairs.queue
                AND entry.partition_key IS NULL
                AND entry.priority = pairs.priority
                AND entry.available_at <= (SELECT clock.now FROM clock)
            ORDER BY entry.available_at, entry.id
            LIMIT %(param_1)s::INTEGER
        ) AS oldest_due_at
    FROM pairs
    WHERE pairs.priority IS NOT NULL
    UNION ALL
    SELECT
        queues.queue AS queue,
        (
            SELECT count(*) AS count_4
            FROM (
                SELECT 1 AS one
                FROM task_outbox AS entry
                WHERE
                    entry.queue = queues.queue
                    AND entry.partition_key IS NOT NULL
                    AND entry.available_at <= (SELECT clock.now FROM clock)
                LIMIT %(most)s::BIGINT
            ) AS "some"
        ) AS due,
        (
            SELECT count(*) AS count_5
            FROM (
                SELECT 1 AS one
                FROM task_outbox AS entry
                WHERE
                    entry.queue = queues.queue
                    AND entry.partition_key IS NOT NULL
                    AND entry.available_at > (SELECT clock.now FROM clock)
                LIMIT %(most)s::BIGINT
            ) AS "some"
        ) AS later,
        (
            SELECT count(*) AS count_6
            FROM (
                SELECT entry.task_execution_id AS id
                FROM task_outbox AS entry
                WHERE
                    entry.queue = queues.queue
                    AND entry.partition_key IS NOT NULL
                    AND entry.available_at > (SELECT clock.now FROM clock)
                ORDER BY entry.available_at, entry.id
                LIMIT %(most_looked_up)s::BIGINT
            ) AS nearest
            WHERE (
                SELECT execution.retry_at
                FROM task_executions AS execution
                WHERE execution.id = nearest.id
            ) IS NOT NULL
        ) AS retrying,
        (
            SELECT entry.available_at
            FROM task_outbox AS entry
            WHERE
                entry.queue = queues.queue
                AND entry.partition_key IS NOT NULL
                AND entry.available_at <= (SELECT clock.now FROM clock)
            ORDER BY entry.available_at, entry.id
            LIMIT %(param_4)s::INTEGER
        ) AS oldest_due_at
    FROM queues
    WHERE queues.queue IS NOT NULL
) AS found
