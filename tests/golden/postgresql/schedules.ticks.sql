SELECT
    schedule_ticks.schedule,
    schedule_ticks.tick,
    schedule_ticks.task_execution_id AS task_id,
    (
        SELECT task_executions.status
        FROM task_executions
        WHERE task_executions.id = schedule_ticks.task_execution_id
    ) AS status
FROM schedule_ticks
WHERE schedule_ticks.schedule = %(name)s::VARCHAR
ORDER BY schedule_ticks.tick DESC
LIMIT %(limit)s::BIGINT
