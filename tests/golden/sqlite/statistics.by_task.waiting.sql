WITH queues AS MATERIALIZED (
    SELECT queues_rows."key" AS ordinal, queues_rows.value AS queue
    FROM json_each(:queues) AS queues_rows
)
SELECT
    task_outbox.queue,
    task_executions.task_name,
    count(*) FILTER (WHERE task_outbox.available_at <= :now) AS ready,
    count(*) FILTER (WHERE task_outbox.available_at > :now) AS delayed,
    min(task_outbox.available_at) FILTER (WHERE task_outbox.available_at <= :now) AS oldest_ready_at
FROM task_outbox
JOIN task_executions ON task_executions.id = task_outbox.task_execution_id
WHERE
    :every_queue = 1
    OR task_outbox.queue IN (SELECT queues.queue FROM queues)
GROUP BY task_outbox.queue, task_executions.task_name
