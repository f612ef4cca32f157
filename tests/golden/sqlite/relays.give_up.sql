-- freed
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS relay,
        json_extract(given_rows.value, '$[1]') AS shard,
        json_extract(given_rows.value, '$[2]') AS token
    FROM json_each(:given) AS given_rows
)
UPDATE relay_shards
SET worker_id=NULL, lease_expires_at=NULL, sleeps_until=NULL
FROM given
WHERE
    relay_shards.relay = given.relay
    AND relay_shards.shard = given.shard
    AND relay_shards.lease_token = given.token
    AND relay_shards.worker_id = :worker_id
