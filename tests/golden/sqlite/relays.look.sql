SELECT
    coalesce(
        (
            SELECT max(relay_messages.id) AS max_1
            FROM relay_messages
            WHERE relay_messages.relay = :relay
        ),
        0
    ) AS head,
    0 AS oldest_open,
    0 AS next_transaction,
    relays.shards,
    relays.on_refused,
    relays.failures,
    relays.paused_at IS NOT NULL AS paused,
    (
        (
            CAST(strftime(:strftime_1, substr(relays.next_try_at, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(relays.next_try_at, :substr_3, :substr_4) AS INTEGER
            )
        ) - (
            CAST(strftime(:strftime_2, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_2 + CAST(
                substr(:now, :substr_7, :substr_8) AS INTEGER
            )
        )
    ) / (1000000 + 0.0) AS try_in
FROM relays
WHERE
    relays.name = :relay
    AND (
        EXISTS (
            SELECT relay_shards.shard
            FROM relay_shards
            WHERE
                relay_shards.relay = :relay
                AND relay_shards.shard = :shard
                AND relay_shards.lease_token = :token
                AND relay_shards.worker_id = :worker_id
        )
    )
