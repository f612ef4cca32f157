WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
UPDATE relays
SET
    failing_since=CASE
        WHEN (%(restarts)s OR relays.failing_since IS NULL) THEN (SELECT clock.now FROM clock)
        ELSE relays.failing_since
    END,
    failures=CASE WHEN (%(restarts)s OR relays.failing_since IS NULL) THEN 1 ELSE relays.failures + 1 END,
    next_try_at=((SELECT clock.now FROM clock) + %(pause_seconds)s * interval '1 second'),
    last_error=%(error)s::VARCHAR
WHERE
    relays.name = %(relay)s::VARCHAR
    AND (
        relays.next_try_at IS NULL
            OR relays.next_try_at <= (SELECT clock.now FROM clock)
    )
