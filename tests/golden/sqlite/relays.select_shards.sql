SELECT
    relay_shards.relay,
    relay_shards.shard,
    CASE WHEN (relay_shards.lease_expires_at > :now) THEN relay_shards.worker_id END AS worker_id,
    workers.label AS worker,
    relay_shards.lease_expires_at
FROM relay_shards
LEFT OUTER JOIN workers ON workers.id = relay_shards.worker_id
ORDER BY relay_shards.relay, relay_shards.shard
