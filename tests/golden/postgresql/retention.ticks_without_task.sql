SELECT schedule_ticks.task_execution_id AS id
FROM schedule_ticks
WHERE
    schedule_ticks.task_execution_id > %(from_id)s::UUID
    AND schedule_ticks.task_execution_id < %(to_id)s::UUID
    AND (
        SELECT task_executions.id
        FROM task_executions
        WHERE task_executions.id = schedule_ticks.task_execution_id
    ) IS NULL
ORDER BY schedule_ticks.task_execution_id
LIMIT %(limit)s::BIGINT
