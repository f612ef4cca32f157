SELECT DISTINCT task_schedules.name AS id
FROM task_schedules
JOIN schedule_ticks ON schedule_ticks.schedule = task_schedules.name
JOIN task_executions ON task_executions.id = schedule_ticks.task_execution_id
WHERE
    task_schedules.paused_at IS NULL
    AND task_executions.status = 'Ready'
    AND task_executions.first_started_at IS NULL
    AND schedule_ticks.tick > task_schedules.planted_until
