SELECT task_outbox.task_execution_id
FROM task_outbox
WHERE task_outbox.task_execution_id = any(array((/* batches.task_executions-1 */)))
ORDER BY task_outbox.task_execution_id
FOR UPDATE
