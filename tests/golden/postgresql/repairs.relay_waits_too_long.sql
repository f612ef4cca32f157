WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    moved AS (
        UPDATE relays
        SET next_try_at=(SELECT clock.now FROM clock)
        WHERE relays.next_try_at > CASE
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
        END + 86400.0 * interval '1 second'
        RETURNING relays.name AS id
    )
SELECT moved.id
FROM moved
