SELECT task_outbox.available_at <= :now AS due, task_outbox.priority
FROM task_outbox
WHERE task_outbox.task_execution_id = :task_id
