SELECT count(*) AS messages
FROM (
    SELECT relay_messages.id AS id
    FROM relay_messages
    WHERE
        relay_messages.relay = :relay
        AND relay_messages.slot % :shards = :shard
        AND relay_messages.id < :message_id
    LIMIT 1001
    OFFSET :param_1
) AS counted
