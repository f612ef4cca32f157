SELECT schedule_ticks.schedule, schedule_ticks.tick, schedule_ticks.task_execution_id, task_executions.status
FROM schedule_ticks
LEFT OUTER JOIN task_executions ON task_executions.id = schedule_ticks.task_execution_id
WHERE schedule_ticks.schedule = :name
ORDER BY schedule_ticks.tick DESC
LIMIT :limit
OFFSET :param_1
