WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
UPDATE workers
SET last_seen_at=((SELECT clock.now FROM clock) + %(long_ago)s * interval '1 second')
WHERE workers.id = %(worker_id)s::UUID
