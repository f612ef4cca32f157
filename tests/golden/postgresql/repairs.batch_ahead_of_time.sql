WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    moved AS (
        UPDATE task_batches
        SET updated_at=(SELECT clock.now FROM clock)
        WHERE
            task_batches.completed_at IS NULL
            AND task_batches.updated_at > CASE
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
        RETURNING task_batches.id
    )
SELECT moved.id
FROM moved
