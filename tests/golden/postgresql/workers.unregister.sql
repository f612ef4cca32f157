WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
DELETE FROM workers
WHERE
    workers.id = %(worker_id)s::UUID
    OR workers.last_seen_at < (SELECT clock.now FROM clock) + %(a_day_ago)s * interval '1 second'
