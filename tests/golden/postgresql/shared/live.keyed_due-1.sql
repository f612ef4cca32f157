SELECT
    keyed_due_entry.queue AS queue,
    keyed_due_entry.available_at AS available_at,
    keyed_due_entry.task_execution_id AS task_execution_id
FROM task_outbox AS keyed_due_entry
WHERE
    keyed_due_entry.queue = queues.queue
    AND keyed_due_entry.partition_key IS NOT NULL
    AND keyed_due_entry.available_at <= (SELECT clock.now FROM clock)
ORDER BY keyed_due_entry.available_at, keyed_due_entry.id
LIMIT %(most)s::BIGINT
