WITH
    held AS MATERIALIZED (
        SELECT relay_shards.shard AS shard
        FROM relay_shards
        WHERE
            relay_shards.relay = %(relay)s::VARCHAR
            AND relay_shards.shard = %(shard)s::INTEGER
            AND relay_shards.lease_token = %(token)s::BIGINT
            AND relay_shards.worker_id = %(worker_id)s::UUID
        FOR UPDATE
    ),
    given AS (
        SELECT batch.id AS id, batch.ordinal AS ordinal
        FROM unnest(%(given_id)s::BIGINT[]) WITH ORDINALITY AS batch(id, ordinal)
    ),
    gone AS (
        DELETE FROM relay_messages
        WHERE
            relay_messages.id = any(array((SELECT given.id FROM given)))
            AND (EXISTS (SELECT held.shard FROM held))
    )
SELECT held.shard
FROM held
