SELECT
    relays.name,
    (
        SELECT count(*) AS count_1
        FROM (
            SELECT relay_messages.id AS id
            FROM relay_messages
            WHERE relay_messages.relay = relays.name
            LIMIT %(limit)s::BIGINT
        ) AS "some"
    ) AS messages,
    (
        SELECT relay_messages.created_at
        FROM relay_messages
        WHERE relay_messages.relay = relays.name
        ORDER BY relay_messages.id
        LIMIT 1
    ) AS oldest_at
FROM relays
