-- advanced
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS name,
        json_extract(given_rows.value, '$[1]') AS planted_until
    FROM json_each(:given) AS given_rows
)
UPDATE task_schedules
SET planted_until=given.planted_until
FROM given
WHERE task_schedules.name = given.name AND task_schedules.planted_until < given.planted_until
