WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
UPDATE maintenance_jobs
SET
    due_at=((SELECT clock.now FROM clock) + %(pause_seconds)s * interval '1 second'),
    done_at=(SELECT clock.now FROM clock)
WHERE maintenance_jobs.name = %(name)s::VARCHAR
