WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT task_leases.task_execution_id AS id
FROM task_leases
WHERE task_leases.lease_expires_at > CASE
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
END + (
    CASE
        WHEN (
            coalesce(
                (
                    SELECT CAST(
                        (CAST(execution_events.event_data AS JSONB) ->> 'lease_seconds') AS DOUBLE PRECISION
                    ) AS anon_1
                    FROM execution_events
                    WHERE
                        execution_events.task_execution_id = task_leases.task_execution_id
                        AND execution_events.lease_token = task_leases.lease_token
                        AND execution_events.event_type = 'task_claimed'
                ),
                (
                    SELECT task_executions.lease_seconds
                    FROM task_executions
                    WHERE task_executions.id = task_leases.task_execution_id
                )
            ) > 3153600000.0
        ) THEN 3153600000.0
        ELSE coalesce(
            (
                SELECT CAST(
                    (CAST(execution_events.event_data AS JSONB) ->> 'lease_seconds') AS DOUBLE PRECISION
                ) AS anon_1
                FROM execution_events
                WHERE
                    execution_events.task_execution_id = task_leases.task_execution_id
                    AND execution_events.lease_token = task_leases.lease_token
                    AND execution_events.event_type = 'task_claimed'
            ),
            (
                SELECT task_executions.lease_seconds
                FROM task_executions
                WHERE task_executions.id = task_leases.task_execution_id
            )
        )
    END + 86400.0
) * interval '1 second'
