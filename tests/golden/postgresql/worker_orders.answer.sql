WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
UPDATE workers
SET
    stacks_asked_at=NULL,
    stacks=%(stacks)s::VARCHAR,
    stacks_at=(SELECT clock.now FROM clock)
WHERE workers.id = %(worker_id)s::UUID
RETURNING workers.id
