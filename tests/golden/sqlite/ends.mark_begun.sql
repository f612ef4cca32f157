UPDATE task_leases
SET begun=1
WHERE
    task_leases.task_execution_id = :task_id
    AND task_leases.lease_token = :lease_token
    AND task_leases.worker_id = :worker_id
RETURNING task_execution_id AS id
