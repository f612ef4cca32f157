SELECT task_outbox.task_execution_id AS id
FROM task_outbox
WHERE EXISTS (/* checks.task_executions-1 */)
