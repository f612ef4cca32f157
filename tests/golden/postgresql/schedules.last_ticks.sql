WITH RECURSIVE
    names AS (
        SELECT batch.name AS name, batch.ordinal AS ordinal
        FROM unnest(%(names_name)s::TEXT[]) WITH ORDINALITY AS batch(name, ordinal)
    ),
    walk(name, tick, place) AS (
        SELECT
            names.name AS name,
            (
                SELECT older.tick
                FROM schedule_ticks AS older
                WHERE older.schedule = names.name
                ORDER BY older.tick DESC
                LIMIT %(param_1)s::INTEGER
            ) AS tick,
            CAST(1 AS BIGINT) AS place
        FROM names
        UNION ALL
        SELECT
            walk.name AS name,
            (
                SELECT older.tick
                FROM schedule_ticks AS older
                WHERE older.schedule = walk.name AND older.tick < walk.tick
                ORDER BY older.tick DESC
                LIMIT %(param_2)s::INTEGER
            ) AS tick,
            walk.place + %(place_1)s::BIGINT AS anon_1
        FROM walk
        WHERE walk.tick IS NOT NULL AND walk.place < %(limit)s::BIGINT
    )
SELECT
    walk.name AS schedule,
    walk.tick,
    (
        SELECT schedule_ticks.task_execution_id
        FROM schedule_ticks
        WHERE schedule_ticks.schedule = walk.name AND schedule_ticks.tick = walk.tick
    ) AS task_id
FROM walk
WHERE walk.tick IS NOT NULL
ORDER BY walk.name, walk.tick
