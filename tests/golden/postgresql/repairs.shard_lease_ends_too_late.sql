WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    moved AS (
        UPDATE relay_shards
        SET lease_expires_at=((SELECT clock.now FROM clock) + 10.0 * interval '1 second')
        WHERE relay_shards.lease_expires_at > CASE
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
        RETURNING relay_shards.relay AS id
    )
SELECT moved.id
FROM moved
