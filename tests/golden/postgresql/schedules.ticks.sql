SELECT newest.schedule, newest.tick, newest.task_execution_id, task_executions.status
FROM (
    SELECT
        schedule_ticks.schedule AS schedule,
        schedule_ticks.tick AS tick,
        schedule_ticks.task_execution_id AS task_execution_id
    FROM schedule_ticks
    WHERE schedule_ticks.schedule = %(name)s::VARCHAR
    ORDER BY schedule_ticks.tick DESC
    LIMIT %(limit)s::BIGINT
) AS newest
LEFT OUTER JOIN task_executions ON task_executions.id = newest.task_execution_id
ORDER BY newest.tick DESC
