WITH named AS MATERIALIZED (
    SELECT named_rows."key" AS ordinal, named_rows.value AS id
    FROM json_each(:named) AS named_rows
)
SELECT workers.id, workers.label, workers.last_seen_at
FROM workers
WHERE workers.id IN (SELECT named.id FROM named)
