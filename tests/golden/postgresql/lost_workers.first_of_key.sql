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
    (SELECT clock.now FROM clock) AS now
FROM task_leases
JOIN task_executions ON task_executions.id = task_leases.task_execution_id
LEFT OUTER JOIN workers ON workers.id = task_leases.worker_id
WHERE task_leases.queue = %(queue)s::VARCHAR AND task_executions.partition_key = %(partition_key)s::VARCHAR
ORDER BY CASE
    WHEN (
        workers.last_seen_at < (SELECT clock.now FROM clock) + %(lost_after)s * interval '1 second'
    ) THEN 0
    ELSE 1
END, task_executions.started_at, task_leases.task_execution_id
LIMIT 1
