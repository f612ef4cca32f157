-- found
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS id
    FROM json_each(:given) AS given_rows
)
SELECT dead_letters.task_execution_id AS id, dead_letters.task_name AS scope, dead_letters.lost_key AS "key"
FROM dead_letters
WHERE
    dead_letters.task_execution_id IN (SELECT given.id FROM given)
    AND dead_letters.lost_key IS NOT NULL
