WITH RECURSIVE
    queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NULL
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_1
            FROM task_outbox AS entry
            WHERE entry.queue > queues.queue AND entry.partition_key IS NULL
        ) AS anon_1
        FROM queues
        WHERE queues.queue IS NOT NULL
    ),
    pairs(queue, priority) AS (/* claim.pairs-3: param_6, param_7, param_8, param_9, anon_2 */),
    keyed_queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NOT NULL
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_2
            FROM task_outbox AS entry
            WHERE entry.queue > keyed_queues.queue AND entry.partition_key IS NOT NULL
        ) AS anon_3
        FROM keyed_queues
        WHERE keyed_queues.queue IS NOT NULL
    )
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
                    AND entry.available_at <= :now
                LIMIT :most
                OFFSET :param_1
            ) AS some
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
                    AND entry.available_at > :now
                LIMIT :most
                OFFSET :param_2
            ) AS some
        ) AS later,
        (/* live.retrying-1: count_3, param_3 */) AS retrying,
        (
            SELECT entry.available_at
            FROM task_outbox AS entry
            WHERE
                entry.queue = pairs.queue
                AND entry.partition_key IS NULL
                AND entry.priority = pairs.priority
                AND entry.available_at <= :now
            ORDER BY entry.available_at, entry.id
            LIMIT :param_4
            OFFSET :param_5
        ) AS oldest_due_at
    FROM pairs
    WHERE pairs.priority IS NOT NULL
    UNION ALL
    SELECT
        keyed_queues.queue AS queue,
        (
            SELECT count(*) AS count_4
            FROM (
                SELECT 1 AS one
                FROM task_outbox AS entry
                WHERE
                    entry.queue = keyed_queues.queue
                    AND entry.partition_key IS NOT NULL
                    AND entry.available_at <= :now
                LIMIT :most
                OFFSET :param_10
            ) AS some
        ) AS due,
        (
            SELECT count(*) AS count_5
            FROM (
                SELECT 1 AS one
                FROM task_outbox AS entry
                WHERE
                    entry.queue = keyed_queues.queue
                    AND entry.partition_key IS NOT NULL
                    AND entry.available_at > :now
                LIMIT :most
                OFFSET :param_11
            ) AS some
        ) AS later,
        (
            SELECT count(*) AS count_6
            FROM (
                SELECT entry.task_execution_id AS id
                FROM task_outbox AS entry
                WHERE
                    entry.queue = keyed_queues.queue
                    AND entry.partition_key IS NOT NULL
                    AND entry.available_at > :now
                ORDER BY entry.available_at, entry.id
                LIMIT :most_looked_up
                OFFSET :param_12
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
                entry.queue = keyed_queues.queue
                AND entry.partition_key IS NOT NULL
                AND entry.available_at <= :now
            ORDER BY entry.available_at, entry.id
            LIMIT :param_13
            OFFSET :param_14
        ) AS oldest_due_at
    FROM keyed_queues
    WHERE keyed_queues.queue IS NOT NULL
) AS found
