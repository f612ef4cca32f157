SELECT task_executions.id, task_executions.task_name, task_executions.status
FROM task_executions
WHERE task_executions.id >= :first AND task_executions.id <= :last
ORDER BY task_executions.id
LIMIT :limit
OFFSET :param_1
