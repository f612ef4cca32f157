SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.headers LIKE '%"outboxq-tick"%'
    AND task_executions.status != 'Cancelled'
    AND json_extract(
        CASE
            WHEN (
                CASE
                    WHEN (json_valid(task_executions.headers) = 1) THEN json_type(task_executions.headers)
                    ELSE ''
                END = 'object'
            ) THEN task_executions.headers
        END,
        '$.outboxq-tick'
    ) IS NOT NULL
    AND NOT (
        EXISTS (
            SELECT schedule_ticks.tick
            FROM schedule_ticks
            WHERE schedule_ticks.task_execution_id = task_executions.id
        )
    )
