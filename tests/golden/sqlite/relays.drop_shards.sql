DELETE FROM relay_shards WHERE relay_shards.relay = :relay
