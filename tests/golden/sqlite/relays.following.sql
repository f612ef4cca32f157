SELECT
    relay_messages.id,
    relay_messages.event_id,
    relay_messages.topic,
    relay_messages.partition_key,
    relay_messages.headers,
    relay_messages.payload,
    relay_messages.created_at
FROM relay_messages
WHERE
    relay_messages.relay = :relay
    AND relay_messages.slot % :shards = :shard
    AND relay_messages.id <= :settled
    AND (
        EXISTS (
            SELECT relay_shards.shard
            FROM relay_shards
            WHERE
                relay_shards.relay = :relay
                AND relay_shards.shard = :shard
                AND relay_shards.lease_token = :token
                AND relay_shards.worker_id = :worker_id
                AND relay_shards.lease_expires_at > :now
        )
    )
ORDER BY relay_messages.id
LIMIT :limit
OFFSET :param_1
