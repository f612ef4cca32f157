SELECT task_executions.id AS id
FROM task_executions
WHERE task_executions.id >= :from_id AND task_executions.id < :to_id
ORDER BY task_executions.id DESC
LIMIT 2
OFFSET :scan - 1
