WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
UPDATE workers
SET
    concurrency=0,
    last_seen_at=(SELECT clock.now FROM clock)
WHERE workers.id = %(worker_id)s::UUID
