UPDATE task_leases
SET begun=true
WHERE
    task_leases.task_execution_id = %(task_id)s::UUID
    AND task_leases.lease_token = %(lease_token)s::BIGINT
    AND task_leases.worker_id = %(worker_id)s::UUID
RETURNING task_leases.task_execution_id AS id
