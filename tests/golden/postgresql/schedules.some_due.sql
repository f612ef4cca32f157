WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT task_schedules.name
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
LIMIT %(param_1)s::INTEGER
