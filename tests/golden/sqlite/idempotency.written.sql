-- found
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS id
    FROM json_each(:given) AS given_rows
)
SELECT task_executions.id
FROM task_executions
WHERE task_executions.id IN (SELECT given.id FROM given)
