WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT queue_settings.queue AS id
FROM queue_settings
WHERE queue_settings.rate_full_at > CASE
    WHEN (
        (
            SELECT newest.created_at
            FROM execution_events AS newest
            ORDER BY newest.sequence_num DESC
            LIMIT %(param_1)s::INTEGER
        ) > (SELECT clock.now FROM clock)
    ) THEN (
        SELECT newest.created_at
        FROM execution_events AS newest
        ORDER BY newest.sequence_num DESC
        LIMIT %(param_1)s::INTEGER
    )
    ELSE (SELECT clock.now FROM clock)
END + (queue_settings.rate_seconds + 86400.0) * interval '1 second'
