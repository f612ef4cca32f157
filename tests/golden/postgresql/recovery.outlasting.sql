WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT
    task_leases.task_execution_id AS id,
    task_leases.lease_token,
    task_leases.worker_id,
    task_leases.lease_expires_at
FROM task_leases
JOIN task_executions ON task_executions.id = task_leases.task_execution_id
WHERE task_leases.lease_expires_at > (SELECT clock.now FROM clock) + (
    CASE
        WHEN (task_executions.lease_seconds BETWEEN 0.0 AND 3153600000.0) THEN task_executions.lease_seconds
        ELSE 3153600000.0
    END + 1.0
) * interval '1 second'
