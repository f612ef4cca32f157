SELECT task_outbox.id
FROM task_outbox
WHERE
    task_outbox.created_at > (
        strftime(
            :strftime_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(1.0 * :param_2) AS INTEGER)
            ) / 1000000,
            :strftime_3
        ) || printf(
            :printf_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(1.0 * :param_2) AS INTEGER)
            ) % 1000000
        )
    )
    AND task_outbox.available_at > :now
    AND (
        task_outbox.available_at <= task_outbox.created_at
            OR (
                EXISTS (
                    SELECT task_executions.id
                    FROM task_executions
                    WHERE
                        task_executions.id = task_outbox.task_execution_id
                        AND task_executions.first_started_at IS NOT NULL
                )
            )
    )
LIMIT :param_3
OFFSET :param_4
