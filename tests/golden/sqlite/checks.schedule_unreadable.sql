SELECT
    task_schedules.name AS id,
    task_schedules.rule,
    task_schedules.tz,
    task_schedules.args,
    task_schedules.starts_at
FROM task_schedules
WHERE task_schedules.paused_at IS NULL
