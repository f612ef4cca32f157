SELECT relays.name AS id
FROM relays
WHERE (
    SELECT count(*) AS count_1
    FROM relay_shards
    WHERE relay_shards.relay = relays.name
) < relays.shards
