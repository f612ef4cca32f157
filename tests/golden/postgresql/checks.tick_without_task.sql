SELECT schedule_ticks.task_execution_id AS id
FROM schedule_ticks
WHERE NOT (
    EXISTS (
        SELECT task_executions.id
        FROM task_executions
        WHERE task_executions.id = schedule_ticks.task_execution_id
    )
)
