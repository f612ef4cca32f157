-- lease
INSERT INTO task_leases (task_execution_id, queue, lease_token, worker_id, lease_expires_at)
SELECT
    task_executions.id,
    task_executions.queue,
    task_executions.lease_token,
    task_executions.worker_id,
    :now AS anon_1
FROM task_executions
WHERE
    task_executions.status = 'Running'
    AND task_executions.worker_id IS NOT NULL
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
ON CONFLICT (task_execution_id) DO UPDATE SET queue = excluded.queue, lease_token = excluded.lease_token, worker_id = excluded.worker_id, lease_expires_at = excluded.lease_expires_at
RETURNING task_execution_id AS id
