WITH RECURSIVE
    queues AS MATERIALIZED (
        SELECT queues_rows."key" AS ordinal, queues_rows.value AS queue
        FROM json_each(:queues) AS queues_rows
    ),
    pairs(queue, priority) AS (/* claim.pairs-3: param_1, param_2, param_3, param_4, anon_1 */)
SELECT found.queue, found.available_at, found.id
FROM (
    SELECT plain_due.queue AS queue, plain_due.available_at AS available_at, plain_due.task_execution_id AS id
    FROM pairs
    JOIN task_outbox AS plain_due ON plain_due.id IN (
        SELECT plain_due_entry.id
        FROM task_outbox AS plain_due_entry
        WHERE
            plain_due_entry.queue = pairs.queue
            AND plain_due_entry.partition_key IS NULL
            AND plain_due_entry.priority = pairs.priority
            AND plain_due_entry.available_at <= :now
        ORDER BY plain_due_entry.available_at, plain_due_entry.id
        LIMIT :most
        OFFSET :param_5
    )
    UNION ALL
    SELECT keyed_due.queue AS queue, keyed_due.available_at AS available_at, keyed_due.task_execution_id AS id
    FROM queues
    JOIN task_outbox AS keyed_due ON keyed_due.id IN (
        SELECT keyed_due_entry.id
        FROM task_outbox AS keyed_due_entry
        WHERE
            keyed_due_entry.queue = queues.queue
            AND keyed_due_entry.partition_key IS NOT NULL
            AND keyed_due_entry.available_at <= :now
        ORDER BY keyed_due_entry.available_at, keyed_due_entry.id
        LIMIT :most
        OFFSET :param_6
    )
) AS found
