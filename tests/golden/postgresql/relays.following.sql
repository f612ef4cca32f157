WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
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
    relay_messages.relay = %(relay)s::VARCHAR
    AND relay_messages.slot %% %(shards)s::INTEGER = %(shard)s::INTEGER
    AND relay_messages.id <= %(settled)s::BIGINT
    AND (
        EXISTS (
            SELECT relay_shards.shard
            FROM relay_shards
            WHERE
                relay_shards.relay = %(relay)s::VARCHAR
                AND relay_shards.shard = %(shard)s::INTEGER
                AND relay_shards.lease_token = %(token)s::BIGINT
                AND relay_shards.worker_id = %(worker_id)s::UUID
                AND relay_shards.lease_expires_at > (SELECT clock.now FROM clock)
        )
    )
ORDER BY relay_messages.id
LIMIT %(limit)s::BIGINT
