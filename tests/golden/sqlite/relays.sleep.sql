UPDATE relay_shards
SET sleeps_until=(
    strftime(
        :strftime_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(:pause_seconds * :param_2) AS INTEGER)
        ) / 1000000,
        :strftime_3
    ) || printf(
        :printf_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(:pause_seconds * :param_2) AS INTEGER)
        ) % 1000000
    )
)
WHERE relay_shards.relay = :relay AND relay_shards.worker_id = :worker_id
