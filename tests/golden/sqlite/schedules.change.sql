-- changed
WITH given AS MATERIALIZED (/* schedules.given-1 */)
UPDATE task_schedules
SET
    task_name=given.task_name,
    args=given.args,
    queue=given.queue,
    priority=given.priority,
    max_attempts=given.max_attempts,
    lease_seconds=given.lease_seconds,
    timeout_seconds=given.timeout_seconds,
    on_dead_letter=given.on_dead_letter,
    rule=given.rule,
    tz=given.tz,
    overlap=given.overlap,
    catch_up=given.catch_up,
    catch_up_limit=given.catch_up_limit,
    grace_seconds=given.grace_seconds,
    jitter_seconds=given.jitter_seconds,
    starts_at=given.starts_at,
    ends_at=given.ends_at,
    declared_by=given.declared_by,
    declaration=given.declaration,
    planted_until=given.planted_until,
    paused_at=given.paused_at,
    pause_reason=given.pause_reason,
    created_at=given.created_at,
    updated_at=given.updated_at
FROM given
WHERE task_schedules.name = given.name
