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
            0
        ) AS shard_without_relay,
        coalesce(relay_shards.worker_id IS NOT NULL AND relay_shards.lease_expires_at IS NULL, 0) AS shard_lease_without_worker,
        coalesce(
            relay_shards.lease_expires_at > (
                strftime(
                    :strftime_1,
                    (
                        CAST(
                            strftime(
                                :strftime_2,
                                substr(
                                    CASE
                                        WHEN (
                                            (
                                                SELECT newest.created_at
                                                FROM execution_events AS newest
                                                ORDER BY newest.sequence_num DESC
                                                LIMIT :param_1
                                                OFFSET :param_2
                                            ) > :now
                                        ) THEN (
                                            SELECT newest.created_at
                                            FROM execution_events AS newest
                                            ORDER BY newest.sequence_num DESC
                                            LIMIT :param_1
                                            OFFSET :param_3
                                        )
                                        ELSE :now
                                    END,
                                    :substr_1,
                                    :substr_2
                                )
                            ) AS INTEGER
                        ) * :param_4 + CAST(
                            substr(
                                CASE
                                    WHEN (
                                        (
                                            SELECT newest.created_at
                                            FROM execution_events AS newest
                                            ORDER BY newest.sequence_num DESC
                                            LIMIT :param_1
                                            OFFSET :param_5
                                        ) > :now
                                    ) THEN (
                                        SELECT newest.created_at
                                        FROM execution_events AS newest
                                        ORDER BY newest.sequence_num DESC
                                        LIMIT :param_1
                                        OFFSET :param_6
                                    )
                                    ELSE :now
                                END,
                                :substr_3,
                                :substr_4
                            ) AS INTEGER
                        ) + CAST(round(86400.0 * :param_7) AS INTEGER)
                    ) / 1000000,
                    :strftime_3
                ) || printf(
                    :printf_1,
                    (
                        CAST(
                            strftime(
                                :strftime_2,
                                substr(
                                    CASE
                                        WHEN (
                                            (
                                                SELECT newest.created_at
                                                FROM execution_events AS newest
                                                ORDER BY newest.sequence_num DESC
                                                LIMIT :param_1
                                                OFFSET :param_8
                                            ) > :now
                                        ) THEN (
                                            SELECT newest.created_at
                                            FROM execution_events AS newest
                                            ORDER BY newest.sequence_num DESC
                                            LIMIT :param_1
                                            OFFSET :param_9
                                        )
                                        ELSE :now
                                    END,
                                    :substr_1,
                                    :substr_2
                                )
                            ) AS INTEGER
                        ) * :param_4 + CAST(
                            substr(
                                CASE
                                    WHEN (
                                        (
                                            SELECT newest.created_at
                                            FROM execution_events AS newest
                                            ORDER BY newest.sequence_num DESC
                                            LIMIT :param_1
                                            OFFSET :param_10
                                        ) > :now
                                    ) THEN (
                                        SELECT newest.created_at
                                        FROM execution_events AS newest
                                        ORDER BY newest.sequence_num DESC
                                        LIMIT :param_1
                                        OFFSET :param_11
                                    )
                                    ELSE :now
                                END,
                                :substr_3,
                                :substr_4
                            ) AS INTEGER
                        ) + CAST(round(86400.0 * :param_7) AS INTEGER)
                    ) % 1000000
                )
            ),
            0
        ) AS shard_lease_ends_too_late
    FROM relay_shards
) AS found
WHERE
    found.shard_without_relay = 1
    OR found.shard_lease_without_worker = 1
    OR found.shard_lease_ends_too_late = 1
