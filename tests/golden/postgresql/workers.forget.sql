WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
DELETE FROM workers
WHERE workers.last_seen_at < (SELECT clock.now FROM clock) + %(forgotten)s * interval '1 second'
RETURNING workers.id
