-- gone
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS id
    FROM json_each(:given) AS given_rows
)
DELETE FROM task_steps
WHERE task_steps.task_execution_id IN (SELECT given.id FROM given)
