WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT task_leases.task_execution_id AS id
FROM task_leases
WHERE task_leases.lease_expires_at < (SELECT clock.now FROM clock)
LIMIT %(param_1)s::INTEGER
