WITH
    names AS (
        SELECT batch.name AS name, batch.ordinal AS ordinal
        FROM unnest(%(names_name)s::TEXT[]) WITH ORDINALITY AS batch(name, ordinal)
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    )
SELECT task_schedules.name
FROM task_schedules
WHERE
    task_schedules.name = any(array((SELECT names.name FROM names)))
    AND task_schedules.planted_until > (SELECT clock.now FROM clock) + 60.0 * interval '1 second'
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
