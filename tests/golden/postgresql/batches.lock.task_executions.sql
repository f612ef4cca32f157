SELECT task_executions.id
FROM task_executions
WHERE task_executions.id = any(array((/* batches.task_executions-1 */)))
ORDER BY task_executions.id
FOR UPDATE
