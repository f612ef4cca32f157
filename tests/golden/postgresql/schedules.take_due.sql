WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
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
    task_schedules.updated_at,
    task_schedules.planted_until > (SELECT clock.now FROM clock) + 60.0 * interval '1 second'
        AND (
            task_schedules.updated_at > (SELECT clock.now FROM clock) + 60.0 * interval '1 second'
                OR task_schedules.planted_until > (SELECT clock.now FROM clock) + 86460.0 * interval '1 second'
        )
        AND (
            task_schedules.updated_at > (SELECT clock.now FROM clock) + 60.0 * interval '1 second'
                OR NOT (
                    EXISTS (
                        SELECT schedule_ticks.tick
                        FROM schedule_ticks
                        WHERE
                            schedule_ticks.schedule = task_schedules.name
                            AND schedule_ticks.tick > (SELECT clock.now FROM clock) + 60.0 * interval '1 second'
                    )
                )
        ) AS planted_wrongly
FROM task_schedules
WHERE
    task_schedules.paused_at IS NULL
    AND (
        task_schedules.planted_until < %(until)s::TIMESTAMP WITH TIME ZONE
            OR task_schedules.planted_until > (SELECT clock.now FROM clock) + 60.0 * interval '1 second'
            AND (
                task_schedules.updated_at > (SELECT clock.now FROM clock) + 60.0 * interval '1 second'
                    OR task_schedules.planted_until > (SELECT clock.now FROM clock) + 86460.0 * interval '1 second'
            )
            AND (
                task_schedules.updated_at > (SELECT clock.now FROM clock) + 60.0 * interval '1 second'
                    OR NOT (
                        EXISTS (
                            SELECT schedule_ticks.tick
                            FROM schedule_ticks
                            WHERE
                                schedule_ticks.schedule = task_schedules.name
                                AND schedule_ticks.tick > (SELECT clock.now FROM clock) + 60.0 * interval '1 second'
                        )
                    )
            )
    )
    AND task_schedules.name > %(after)s::VARCHAR
ORDER BY task_schedules.name
LIMIT %(limit)s::BIGINT
FOR UPDATE SKIP LOCKED
