WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
UPDATE relay_shards
SET sleeps_until=((SELECT clock.now FROM clock) + %(pause_seconds)s * interval '1 second')
WHERE relay_shards.relay = %(relay)s::VARCHAR AND relay_shards.worker_id = %(worker_id)s::UUID
