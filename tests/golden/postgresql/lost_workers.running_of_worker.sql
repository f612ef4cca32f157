WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT
    task_leases.task_execution_id AS id,
    task_leases.lease_token,
    task_leases.worker_id,
    task_leases.lease_expires_at,
    task_executions.started_at,
    task_executions.lease_seconds,
    workers.label,
    workers.last_seen_at,
    (SELECT clock.now FROM clock) AS now,
    task_executions.task_name,
    task_executions.queue,
    task_executions.cancel_requested_at,
    task_executions.recovery_attempts,
    task_leases.begun
FROM task_leases
JOIN task_executions ON task_executions.id = task_leases.task_execution_id
LEFT OUTER JOIN workers ON workers.id = task_leases.worker_id
WHERE task_leases.worker_id = %(worker_id)s::UUID AND task_leases.task_execution_id > %(after)s::UUID
ORDER BY task_leases.task_execution_id
LIMIT %(limit)s::BIGINT
