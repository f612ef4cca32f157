WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT CASE
    WHEN (maintenance_jobs.done_at > (SELECT clock.now FROM clock)) THEN 0.0
    ELSE CASE
    WHEN (
        isfinite((SELECT clock.now FROM clock))
            AND isfinite(maintenance_jobs.due_at)
    ) THEN CAST(
        EXTRACT(epoch FROM maintenance_jobs.due_at - (SELECT clock.now FROM clock)) * %(param_1)s::INTEGER AS BIGINT
    )
END / CAST(1000000.0 AS DOUBLE PRECISION)
END AS seconds
FROM maintenance_jobs
WHERE maintenance_jobs.name = %(name)s::VARCHAR
