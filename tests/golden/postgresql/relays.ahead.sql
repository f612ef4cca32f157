SELECT count(*) AS messages
FROM (
    SELECT relay_messages.id AS id
    FROM relay_messages
    WHERE
        relay_messages.relay = %(relay)s::VARCHAR
        AND relay_messages.slot %% %(shards)s::INTEGER = %(shard)s::INTEGER
        AND relay_messages.id < %(message_id)s::BIGINT
    LIMIT 1001
) AS counted
