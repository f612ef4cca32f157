DELETE FROM task_schedules WHERE task_schedules.name = :name
