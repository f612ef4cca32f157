WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    moved AS (
        UPDATE queue_settings
        SET rate_full_at=(
            (SELECT clock.now FROM clock) + queue_settings.rate_seconds * interval '1 second'
        )
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
        RETURNING queue_settings.queue AS id, queue_settings.queue
    )
SELECT moved.id, moved.queue
FROM moved
