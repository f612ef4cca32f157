SELECT task_executions.id
FROM task_executions
WHERE task_executions.id = :task_id AND task_executions.status = 'Ready'
