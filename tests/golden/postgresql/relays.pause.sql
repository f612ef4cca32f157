WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
UPDATE relays
SET
    paused_at=(SELECT clock.now FROM clock),
    pause_reason=%(reason)s::VARCHAR
WHERE relays.name = %(relay)s::VARCHAR AND relays.paused_at IS NULL
RETURNING relays.name
