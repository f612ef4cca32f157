SELECT task_executions.id, task_executions.task_name, task_executions.status
FROM task_executions
WHERE task_executions.id >= %(first)s::UUID AND task_executions.id <= %(last)s::UUID
ORDER BY task_executions.id
LIMIT %(limit)s::BIGINT
