WITH names AS (
    SELECT batch.name AS name, batch.ordinal AS ordinal
    FROM unnest(%(names_name)s::TEXT[]) WITH ORDINALITY AS batch(name, ordinal)
)
SELECT
    task_schedules.name,
    task_schedules.task_name,
    task_schedules.args,
    task_schedules.queue,
    task_schedules.priority,
    task_schedules.max_attempts,
    task_schedules.lease_seconds,
    task_schedules.timeout_seconds,
    task_schedules.on_dead_letter,
    task_schedules.rule,
    task_schedules.tz,
    task_schedules.overlap,
    task_schedules.catch_up,
    task_schedules.catch_up_limit,
    task_schedules.grace_seconds,
    task_schedules.jitter_seconds,
    task_schedules.starts_at,
    task_schedules.ends_at,
    task_schedules.declared_by,
    task_schedules.declaration,
    task_schedules.planted_until,
    task_schedules.paused_at,
    task_schedules.pause_reason,
    task_schedules.created_at,
    task_schedules.updated_at
FROM task_schedules
WHERE task_schedules.name = any(array((SELECT names.name FROM names)))
ORDER BY task_schedules.name
