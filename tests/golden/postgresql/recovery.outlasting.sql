WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    late AS MATERIALIZED (
        SELECT
            task_leases.task_execution_id AS id,
            task_leases.lease_token AS lease_token,
            task_leases.worker_id AS worker_id,
            task_leases.lease_expires_at AS lease_expires_at,
            coalesce(
                (
                    SELECT CAST(
                        CAST(execution_events.event_data AS JSONB) ->> 'lease_seconds' AS DOUBLE PRECISION
                    ) AS anon_1
                    FROM execution_events
                    WHERE
                        execution_events.task_execution_id = task_leases.task_execution_id
                        AND execution_events.lease_token = task_leases.lease_token
                        AND execution_events.event_type = 'task_claimed'
                ),
                CASE
                    WHEN (task_executions.lease_seconds BETWEEN 0.0 AND 3153600000.0) THEN task_executions.lease_seconds
                    ELSE 3153600000.0
                END
            ) AS seconds
        FROM task_leases
        JOIN task_executions ON task_executions.id = task_leases.task_execution_id
        WHERE task_leases.lease_expires_at > (SELECT clock.now FROM clock) + (
            CASE
                WHEN (task_executions.lease_seconds BETWEEN 0.0 AND 3153600000.0) THEN task_executions.lease_seconds
                ELSE 3153600000.0
            END + 1.0
        ) * interval '1 second'
    )
SELECT late.id, late.lease_token, late.worker_id, late.lease_expires_at, late.seconds
FROM late
WHERE late.lease_expires_at > (SELECT clock.now FROM clock) + (late.seconds + 1.0) * interval '1 second'
