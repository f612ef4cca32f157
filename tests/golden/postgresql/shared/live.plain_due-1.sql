SELECT
    plain_due_entry.queue AS queue,
    plain_due_entry.available_at AS available_at,
    plain_due_entry.task_execution_id AS task_execution_id
FROM task_outbox AS plain_due_entry
WHERE
    plain_due_entry.queue = pairs.queue
    AND plain_due_entry.partition_key IS NULL
    AND plain_due_entry.priority = pairs.priority
    AND plain_due_entry.available_at <= (SELECT clock.now FROM clock)
ORDER BY plain_due_entry.available_at, plain_due_entry.id
LIMIT %(most)s::BIGINT
