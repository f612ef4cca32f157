WITH named AS MATERIALIZED (
    SELECT named_rows."key" AS ordinal, named_rows.value AS id
    FROM json_each(:named) AS named_rows
)
SELECT workers.id, workers.label
FROM workers
WHERE workers.id IN (SELECT named.id FROM named)
