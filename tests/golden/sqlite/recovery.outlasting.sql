WITH late AS MATERIALIZED (
    SELECT
        task_leases.task_execution_id AS id,
        task_leases.lease_token AS lease_token,
        task_leases.worker_id AS worker_id,
        task_leases.lease_expires_at AS lease_expires_at,
        coalesce(
            (
                SELECT CAST(json_extract(execution_events.event_data, '$.lease_seconds') AS DOUBLE) AS json_extract_1
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
    WHERE task_leases.lease_expires_at > (
        strftime(
            :strftime_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(
                    round(
                        (
                            CASE
                                WHEN (task_executions.lease_seconds BETWEEN 0.0 AND 3153600000.0) THEN task_executions.lease_seconds
                                ELSE 3153600000.0
                            END + 1.0
                        ) * :param_2
                    ) AS INTEGER
                )
            ) / 1000000,
            :strftime_3
        ) || printf(
            :printf_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(
                    round(
                        (
                            CASE
                                WHEN (task_executions.lease_seconds BETWEEN 0.0 AND 3153600000.0) THEN task_executions.lease_seconds
                                ELSE 3153600000.0
                            END + 1.0
                        ) * :param_2
                    ) AS INTEGER
                )
            ) % 1000000
        )
    )
)
SELECT late.id, late.lease_token, late.worker_id, late.lease_expires_at, late.seconds
FROM late
WHERE late.lease_expires_at > (
    strftime(
        :strftime_4,
        (
            CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_3 + CAST(
                substr(:now, :substr_7, :substr_8) AS INTEGER
            ) + CAST(round((late.seconds + 1.0) * :param_4) AS INTEGER)
        ) / 1000000,
        :strftime_6
    ) || printf(
        :printf_2,
        (
            CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_3 + CAST(
                substr(:now, :substr_7, :substr_8) AS INTEGER
            ) + CAST(round((late.seconds + 1.0) * :param_4) AS INTEGER)
        ) % 1000000
    )
)
