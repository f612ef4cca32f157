-- gone
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS id
    FROM json_each(:given) AS given_rows
)
DELETE FROM schedule_ticks
WHERE schedule_ticks.task_execution_id IN (SELECT given.id FROM given)
