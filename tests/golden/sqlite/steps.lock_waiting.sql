SELECT task_outbox.task_execution_id AS id
FROM task_outbox
WHERE task_outbox.task_execution_id = :task_id
