-- spent
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS partition_key,
        json_extract(given_rows.value, '$[1]') AS full_at
    FROM json_each(:given) AS given_rows
)
INSERT INTO key_rates (queue, partition_key, full_at)
SELECT CAST(:queue AS TEXT) AS anon_1, given.partition_key, given.full_at
FROM given
WHERE 1 = 1
ON CONFLICT (queue, partition_key) DO UPDATE SET full_at = excluded.full_at
