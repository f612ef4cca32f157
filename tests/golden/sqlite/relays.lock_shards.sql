SELECT relay_shards.shard, relay_shards.lease_token, relay_shards.lease_expires_at
FROM relay_shards
WHERE relay_shards.relay = :relay
