SELECT task_leases.task_execution_id
FROM task_leases
WHERE task_leases.task_execution_id = any(array((/* batches.task_executions-1 */)))
ORDER BY task_leases.task_execution_id
FOR UPDATE
