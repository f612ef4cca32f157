SELECT task_executions.id AS id
FROM task_executions
WHERE task_executions.id >= %(from_id)s::UUID AND task_executions.id < %(to_id)s::UUID
ORDER BY task_executions.id
LIMIT 2
OFFSET %(scan)s::BIGINT - 1
