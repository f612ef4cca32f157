WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT workers.unknown_tasks
FROM workers
WHERE
    workers.unknown_tasks IS NOT NULL
    AND workers.last_seen_at >= (SELECT clock.now FROM clock) + %(a_day_ago)s * interval '1 second'
