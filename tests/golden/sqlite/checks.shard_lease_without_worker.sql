SELECT relay_shards.relay AS id
FROM relay_shards
WHERE relay_shards.worker_id IS NOT NULL AND relay_shards.lease_expires_at IS NULL
