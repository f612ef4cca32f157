WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
UPDATE workers
SET
    stacks_asked_at=(SELECT clock.now FROM clock),
    stacks=NULL,
    stacks_at=NULL
WHERE workers.id = %(worker_id)s::UUID AND workers.ended_at IS NULL
RETURNING workers.id
