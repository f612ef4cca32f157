SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.status = 'Running'
    AND NOT (
        EXISTS (
            SELECT task_leases.task_execution_id
            FROM task_leases
            WHERE
                task_leases.task_execution_id = task_executions.id
                AND task_leases.lease_token = task_executions.lease_token
                AND task_leases.worker_id = task_executions.worker_id
        )
    )
