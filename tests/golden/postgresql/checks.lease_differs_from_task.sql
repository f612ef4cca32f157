SELECT task_leases.task_execution_id AS id
FROM task_leases
WHERE EXISTS (
    SELECT task_executions.id
    FROM task_executions
    WHERE task_executions.id = task_leases.task_execution_id AND task_executions.queue != task_leases.queue
)
