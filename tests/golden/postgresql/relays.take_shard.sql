WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
UPDATE relay_shards
SET
    lease_token=(relay_shards.lease_token + 1),
    worker_id=%(worker_id)s::UUID,
    lease_expires_at=((SELECT clock.now FROM clock) + %(lease_seconds)s * interval '1 second'),
    sleeps_until=NULL
WHERE
    relay_shards.relay = %(relay)s::VARCHAR
    AND relay_shards.shard = (
        SELECT free.shard
        FROM relay_shards AS free
        WHERE
            free.relay = %(relay)s::VARCHAR
            AND (
                free.lease_expires_at IS NULL
                    OR free.lease_expires_at <= (SELECT clock.now FROM clock)
            )
        ORDER BY free.shard
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    )
RETURNING relay_shards.shard, relay_shards.lease_token
