-- added
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS relay,
        json_extract(given_rows.value, '$[1]') AS shard,
        json_extract(given_rows.value, '$[2]') AS lease_token,
        json_extract(given_rows.value, '$[3]') AS lease_expires_at
    FROM json_each(:given) AS given_rows
)
INSERT INTO relay_shards (relay, shard, lease_token, lease_expires_at)
SELECT given.relay, given.shard, given.lease_token, given.lease_expires_at
FROM given
