SELECT
    task_leases.task_execution_id AS id,
    task_leases.lease_token,
    task_leases.worker_id,
    task_leases.lease_expires_at
FROM task_leases
WHERE task_leases.lease_expires_at < :now
ORDER BY task_leases.lease_expires_at
LIMIT :limit
OFFSET :param_1
