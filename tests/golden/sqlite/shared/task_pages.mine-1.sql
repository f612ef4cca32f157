SELECT
    task_outbox.task_execution_id AS id,
    task_outbox.queue AS queue,
    task_outbox.partition_key AS partition_key,
    task_outbox.topic AS topic,
    task_outbox.available_at AS available_at
FROM task_outbox
WHERE task_outbox.queue = :queue AND task_outbox.partition_key IS NULL
UNION ALL
SELECT
    task_outbox.task_execution_id AS id,
    task_outbox.queue AS queue,
    task_outbox.partition_key AS partition_key,
    task_outbox.topic AS topic,
    task_outbox.available_at AS available_at
FROM task_outbox
WHERE task_outbox.queue = :queue AND task_outbox.partition_key IS NOT NULL
