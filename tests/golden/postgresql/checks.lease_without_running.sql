SELECT task_leases.task_execution_id AS id
FROM task_leases
WHERE NOT (
    EXISTS (
        SELECT task_executions.id
        FROM task_executions
        WHERE
            task_executions.id = task_leases.task_execution_id
            AND task_executions.status = 'Running'
            AND task_executions.lease_token = task_leases.lease_token
            AND task_executions.worker_id = task_leases.worker_id
    )
)
