SELECT DISTINCT relay_shards.relay AS id
FROM relay_shards
WHERE NOT (
    EXISTS (
        SELECT relays.name
        FROM relays
        WHERE relays.name = relay_shards.relay AND relay_shards.shard < relays.shards
    )
)
