WITH given AS (
    SELECT batch.relay AS relay, batch.shard AS shard, batch.token AS token, batch.ordinal AS ordinal
    FROM unnest(%(given_relay)s::TEXT[], %(given_shard)s::INTEGER[], %(given_token)s::BIGINT[]) WITH ORDINALITY AS batch(
        relay,
        shard,
        token,
        ordinal
    )
)
UPDATE relay_shards
SET worker_id=NULL, lease_expires_at=NULL, sleeps_until=NULL
FROM given
WHERE
    relay_shards.relay = given.relay
    AND relay_shards.shard = given.shard
    AND relay_shards.lease_token = given.token
    AND relay_shards.worker_id = %(worker_id)s::UUID
