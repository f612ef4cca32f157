WITH names AS MATERIALIZED (
    SELECT names_rows."key" AS ordinal, names_rows.value AS name
    FROM json_each(:names) AS names_rows
)
SELECT relays.name, relays.shards, relays.on_refused
FROM relays
WHERE relays.name IN (SELECT names.name FROM names)
