WITH
    given AS (
        SELECT
            batch.schedule AS schedule,
            batch.tick AS tick,
            batch.task_execution_id AS task_execution_id,
            batch.ordinal AS ordinal
        FROM unnest(
            %(given_schedule)s::TEXT[],
            %(given_tick)s::TIMESTAMP WITH TIME ZONE[],
            %(given_task_execution_id)s::UUID[]
        ) WITH ORDINALITY AS batch(schedule, tick, task_execution_id, ordinal)
    ),
    recorded AS (
        INSERT INTO schedule_ticks (schedule, tick, task_execution_id)
        SELECT given.schedule AS schedule, given.tick AS tick, given.task_execution_id AS task_execution_id
        FROM given
        WHERE given.schedule IS NOT NULL
        ORDER BY given.schedule, given.tick
        ON CONFLICT DO NOTHING
        RETURNING schedule_ticks.task_execution_id AS id
    )
SELECT recorded.id
FROM recorded
