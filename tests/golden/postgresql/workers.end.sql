WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
UPDATE workers
SET
    unknown_tasks=CASE WHEN %(met_unknown)s THEN workers.unknown_tasks END,
    last_seen_at=(SELECT clock.now FROM clock),
    ended_at=(SELECT clock.now FROM clock)
WHERE workers.id = %(worker_id)s::UUID AND workers.ended_at IS NULL
