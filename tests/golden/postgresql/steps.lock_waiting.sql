SELECT task_executions.id
FROM task_executions
WHERE task_executions.id = %(task_id)s::UUID AND task_executions.status = 'Ready'
FOR UPDATE
