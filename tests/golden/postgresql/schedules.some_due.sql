SELECT task_schedules.name
FROM task_schedules
WHERE task_schedules.paused_at IS NULL AND task_schedules.planted_until < %(until)s::TIMESTAMP WITH TIME ZONE
LIMIT %(param_1)s::INTEGER
