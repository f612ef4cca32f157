SELECT task_executions.id
FROM schedule_ticks
JOIN task_executions ON task_executions.id = schedule_ticks.task_execution_id
WHERE
    json_extract(
        CASE
            WHEN (
                CASE
                    WHEN (json_valid(task_executions.headers) = 1) THEN json_type(task_executions.headers)
                    ELSE ''
                END = 'object'
            ) THEN task_executions.headers
        END,
        '$.outboxq-schedule'
    ) IS NOT schedule_ticks.schedule
    OR json_extract(
        CASE
            WHEN (
                CASE
                    WHEN (json_valid(task_executions.headers) = 1) THEN json_type(task_executions.headers)
                    ELSE ''
                END = 'object'
            ) THEN task_executions.headers
        END,
        '$.outboxq-tick'
    ) IS NOT schedule_ticks.tick
