-- recorded
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS schedule,
        json_extract(given_rows.value, '$[1]') AS tick,
        json_extract(given_rows.value, '$[2]') AS task_execution_id
    FROM json_each(:given) AS given_rows
)
INSERT INTO schedule_ticks (schedule, tick, task_execution_id)
SELECT given.schedule, given.tick, given.task_execution_id
FROM given
WHERE given.schedule IS NOT NULL
ORDER BY given.schedule, given.tick
ON CONFLICT DO NOTHING
RETURNING task_execution_id AS id
