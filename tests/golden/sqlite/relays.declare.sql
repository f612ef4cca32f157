-- written
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS name,
        json_extract(given_rows.value, '$[1]') AS shards,
        json_extract(given_rows.value, '$[2]') AS on_refused
    FROM json_each(:given) AS given_rows
)
INSERT INTO relays (name, shards, on_refused, failures, created_at)
SELECT given.name, given.shards, given.on_refused, 0, :now AS anon_1
FROM given
WHERE given.name IS NOT NULL
ORDER BY given.name
ON CONFLICT (name) DO UPDATE SET shards = excluded.shards, on_refused = excluded.on_refused
