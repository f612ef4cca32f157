WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT found.id, found.shard_missing, found.relay_waits_too_long
FROM (
    SELECT
        relays.name AS id,
        coalesce(
            (
                SELECT count(*) AS count_1
                FROM relay_shards
                WHERE relay_shards.relay = relays.name
            ) < relays.shards,
            false
        ) AS shard_missing,
        coalesce(
            relays.next_try_at > CASE
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
        ) AS relay_waits_too_long
    FROM relays
) AS found
WHERE found.shard_missing OR found.relay_waits_too_long
