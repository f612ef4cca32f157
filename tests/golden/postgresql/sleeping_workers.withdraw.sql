WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
UPDATE sleeping_workers
SET wakes_at=(SELECT clock.now FROM clock)
WHERE sleeping_workers.worker_id = %(worker_id)s::UUID
