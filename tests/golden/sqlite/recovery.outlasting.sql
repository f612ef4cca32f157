SELECT
    task_leases.task_execution_id AS id,
    task_leases.lease_token,
    task_leases.worker_id,
    task_leases.lease_expires_at
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
