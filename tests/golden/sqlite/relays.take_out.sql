-- held
SELECT relay_shards.shard
FROM relay_shards
WHERE
    relay_shards.relay = :relay
    AND relay_shards.shard = :shard
    AND relay_shards.lease_token = :token
    AND relay_shards.worker_id = :worker_id;

-- gone
WITH
    given AS MATERIALIZED (
        SELECT given_rows."key" AS ordinal, given_rows.value AS id
        FROM json_each(:given) AS given_rows
    ),
    held AS MATERIALIZED (
        SELECT held_rows."key" AS ordinal, held_rows.value AS shard
        FROM json_each(:held) AS held_rows
    )
DELETE FROM relay_messages
WHERE
    relay_messages.id IN (SELECT given.id FROM given)
    AND (EXISTS (SELECT held.shard FROM held))
RETURNING id, relay, slot, event_id, topic, partition_key, headers, payload, created_at
