SELECT
    task_leases.task_execution_id AS id,
    task_leases.lease_token,
    task_leases.worker_id,
    task_leases.lease_expires_at,
    task_executions.started_at,
    task_executions.lease_seconds,
    workers.label,
    workers.last_seen_at,
    :now AS now
FROM task_leases
JOIN task_executions ON task_executions.id = task_leases.task_execution_id
LEFT OUTER JOIN workers ON workers.id = task_leases.worker_id
WHERE task_leases.queue = :queue
ORDER BY CASE
    WHEN (
        workers.last_seen_at < (
            strftime(
                :strftime_1,
                (
                    CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                        substr(:now, :substr_3, :substr_4) AS INTEGER
                    ) + CAST(round(:lost_after * :param_2) AS INTEGER)
                ) / 1000000,
                :strftime_3
            ) || printf(
                :printf_1,
                (
                    CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                        substr(:now, :substr_3, :substr_4) AS INTEGER
                    ) + CAST(round(:lost_after * :param_2) AS INTEGER)
                ) % 1000000
            )
        )
    ) THEN 0
    ELSE 1
END, task_executions.started_at, task_leases.task_execution_id
LIMIT 1
OFFSET :param_3
