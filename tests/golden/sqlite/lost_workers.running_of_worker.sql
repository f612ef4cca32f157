SELECT
    task_leases.task_execution_id AS id,
    task_leases.lease_token,
    task_leases.worker_id,
    task_leases.lease_expires_at,
    task_executions.started_at,
    task_executions.lease_seconds,
    workers.label,
    workers.last_seen_at,
    :now AS now,
    task_executions.task_name,
    task_executions.queue,
    task_executions.cancel_requested_at,
    task_executions.recovery_attempts,
    task_leases.begun
FROM task_leases
JOIN task_executions ON task_executions.id = task_leases.task_execution_id
LEFT OUTER JOIN workers ON workers.id = task_leases.worker_id
WHERE task_leases.worker_id = :worker_id AND task_leases.task_execution_id > :after
ORDER BY task_leases.task_execution_id
LIMIT :limit
OFFSET :param_1
