UPDATE relay_shards
SET
    lease_token=(relay_shards.lease_token + 1),
    worker_id=:worker_id,
    lease_expires_at=(
        strftime(
            :strftime_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(:lease_seconds * :param_2) AS INTEGER)
            ) / 1000000,
            :strftime_3
        ) || printf(
            :printf_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(:lease_seconds * :param_2) AS INTEGER)
            ) % 1000000
        )
    ),
    sleeps_until=NULL
WHERE
    relay_shards.relay = :relay
    AND relay_shards.shard = (
        SELECT free.shard
        FROM relay_shards AS free
        WHERE free.relay = :relay AND (free.lease_expires_at IS NULL OR free.lease_expires_at <= :now)
        ORDER BY free.shard
        LIMIT 1
        OFFSET :param_3
    )
RETURNING shard, lease_token
