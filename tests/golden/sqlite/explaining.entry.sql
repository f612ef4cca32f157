SELECT task_outbox.id, task_outbox.available_at, task_outbox.priority
FROM task_outbox
WHERE task_outbox.task_execution_id = :task_id
