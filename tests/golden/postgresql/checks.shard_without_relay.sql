WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT found.id, found.shard_without_relay, found.shard_lease_without_worker, found.shard_lease_ends_too_late
FROM (
    SELECT
        relay_shards.relay AS id,
        coalesce(
            NOT (
                EXISTS (
                    SELECT relays.name
                    FROM relays
                    WHERE
                        relays.name = relay_shards.relay
                        AND relay_shards.shard BETWEEN 0
                        AND relays.shards - 1
                )
            ),
            false
        ) AS shard_without_relay,
        coalesce(relay_shards.worker_id IS NOT NULL AND relay_shards.lease_expires_at IS NULL, false) AS shard_lease_without_worker,
        coalesce(
            relay_shards.lease_expires_at > CASE
                WHEN (
                    (
                        SELECT newest.created_at
                        FROM execution_events AS newest
                        ORDER BY newest.sequence_num DESC
                        LIMIT %(param_1)s::INTEGER
                    ) > (SELECT clock.now FROM clock)
                ) THEN (
                    SELECT newest.created_at
                    FROM execution_events AS newest
                    ORDER BY newest.sequence_num DESC
                    LIMIT %(param_1)s::INTEGER
                )
                ELSE (SELECT clock.now FROM clock)
            END + 86400.0 * interval '1 second',
            false
        ) AS shard_lease_ends_too_late
    FROM relay_shards
) AS found
WHERE found.shard_without_relay OR found.shard_lease_without_worker OR found.shard_lease_ends_too_late
