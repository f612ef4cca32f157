WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT
    coalesce(
        (
            SELECT max(relay_messages.id) AS max_1
            FROM relay_messages
            WHERE relay_messages.relay = %(relay)s::VARCHAR
        ),
        0
    ) AS head,
    CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT) AS oldest_open,
    CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT) + age(
        CAST(pg_snapshot_xmin(pg_current_snapshot()) AS xid)
    ) AS next_transaction,
    relays.shards,
    relays.on_refused,
    relays.failures,
    relays.paused_at IS NOT NULL AS paused,
    CASE
        WHEN (isfinite((SELECT clock.now FROM clock)) AND isfinite(relays.next_try_at)) THEN CAST(
            EXTRACT(epoch FROM relays.next_try_at - (SELECT clock.now FROM clock)) * %(param_1)s::INTEGER AS BIGINT
        )
    END / CAST(1000000 AS DOUBLE PRECISION) AS try_in
FROM relays
WHERE
    relays.name = %(relay)s::VARCHAR
    AND (
        EXISTS (
            SELECT relay_shards.shard
            FROM relay_shards
            WHERE
                relay_shards.relay = %(relay)s::VARCHAR
                AND relay_shards.shard = %(shard)s::INTEGER
                AND relay_shards.lease_token = %(token)s::BIGINT
                AND relay_shards.worker_id = %(worker_id)s::UUID
        )
    )
