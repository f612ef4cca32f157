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
            0
        ) AS shard_missing,
        coalesce(
            relays.next_try_at > (
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
        ) AS relay_waits_too_long
    FROM relays
) AS found
WHERE found.shard_missing = 1 OR found.relay_waits_too_long = 1
