-- created
WITH given AS MATERIALIZED (/* schedules.given-1 */)
INSERT INTO task_schedules (
    name,
    task_name,
    args,
    queue,
    priority,
    max_attempts,
    lease_seconds,
    timeout_seconds,
    on_dead_letter,
    rule,
    tz,
    overlap,
    catch_up,
    catch_up_limit,
    grace_seconds,
    jitter_seconds,
    starts_at,
    ends_at,
    declared_by,
    declaration,
    planted_until,
    paused_at,
    pause_reason,
    created_at,
    updated_at
)
SELECT
    given.name,
    given.task_name,
    given.args,
    given.queue,
    given.priority,
    given.max_attempts,
    given.lease_seconds,
    given.timeout_seconds,
    given.on_dead_letter,
    given.rule,
    given.tz,
    given.overlap,
    given.catch_up,
    given.catch_up_limit,
    given.grace_seconds,
    given.jitter_seconds,
    given.starts_at,
    given.ends_at,
    given.declared_by,
    given.declaration,
    given.planted_until,
    given.paused_at,
    given.pause_reason,
    given.created_at,
    given.updated_at
FROM given
WHERE given.name IS NOT NULL
ON CONFLICT DO NOTHING
RETURNING name AS id
