WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT
    task_leases.task_execution_id AS id,
    task_leases.lease_token,
    task_leases.worker_id,
    task_leases.lease_expires_at
FROM task_leases
WHERE task_leases.lease_expires_at < (SELECT clock.now FROM clock)
ORDER BY task_leases.lease_expires_at
LIMIT %(limit)s::BIGINT
