WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    given AS (
        SELECT batch.relay AS relay, batch.shard AS shard, batch.token AS token, batch.ordinal AS ordinal
        FROM unnest(%(given_relay)s::TEXT[], %(given_shard)s::INTEGER[], %(given_token)s::BIGINT[]) WITH ORDINALITY AS batch(
            relay,
            shard,
            token,
            ordinal
        )
    ),
    renewed AS (
        UPDATE relay_shards
        SET lease_expires_at=((SELECT clock.now FROM clock) + %(lease_seconds)s * interval '1 second')
        FROM given
        WHERE
            relay_shards.relay = given.relay
            AND relay_shards.shard = given.shard
            AND relay_shards.lease_token = given.token
            AND relay_shards.worker_id = %(worker_id)s::UUID
        RETURNING relay_shards.relay, relay_shards.shard
    )
SELECT renewed.relay, renewed.shard
FROM renewed
