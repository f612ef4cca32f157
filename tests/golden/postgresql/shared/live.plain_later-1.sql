SELECT
    plain_later_entry.queue AS queue,
    plain_later_entry.available_at AS available_at,
    plain_later_entry.task_execution_id AS task_execution_id
FROM task_outbox AS plain_later_entry
WHERE
    plain_later_entry.queue = pairs.queue
    AND plain_later_entry.partition_key IS NULL
    AND plain_later_entry.priority = pairs.priority
    AND plain_later_entry.available_at > (SELECT clock.now FROM clock)
ORDER BY plain_later_entry.available_at, plain_later_entry.id
LIMIT %(most)s::BIGINT
