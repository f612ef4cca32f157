WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
UPDATE workers
SET
    unknown_tasks=%(unknown_tasks_json)s::VARCHAR,
    last_seen_at=(SELECT clock.now FROM clock)
WHERE workers.id = %(worker_id)s::UUID AND workers.ended_at IS NULL
RETURNING workers.asked_to, workers.stacks_asked_at
