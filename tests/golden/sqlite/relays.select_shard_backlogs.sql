SELECT sharded.shard, count(*) AS messages, min(sharded.created_at) AS oldest_at
FROM (
    SELECT
        some.slot % (SELECT relays.shards FROM relays WHERE relays.name = :relay) AS shard,
        some.created_at AS created_at
    FROM (
        SELECT relay_messages.slot AS slot, relay_messages.created_at AS created_at
        FROM relay_messages
        WHERE relay_messages.relay = :relay
        ORDER BY relay_messages.id
        LIMIT :most
        OFFSET :param_1
    ) AS some
) AS sharded
GROUP BY sharded.shard
ORDER BY sharded.shard
