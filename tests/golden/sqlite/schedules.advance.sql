-- advanced
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS name,
        json_extract(given_rows.value, '$[1]') AS planted_until,
        json_extract(given_rows.value, '$[2]') AS updated_at
    FROM json_each(:given) AS given_rows
)
UPDATE task_schedules
SET planted_until=given.planted_until, updated_at=coalesce(given.updated_at, task_schedules.updated_at)
FROM given
WHERE task_schedules.name = given.name AND task_schedules.planted_until < given.planted_until
