-- moved
UPDATE relay_shards
SET lease_expires_at=(
    strftime(
        :strftime_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(10.0 * :param_2) AS INTEGER)
        ) / 1000000,
        :strftime_3
    ) || printf(
        :printf_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(10.0 * :param_2) AS INTEGER)
        ) % 1000000
    )
)
WHERE relay_shards.lease_expires_at > (
    strftime(
        :strftime_4,
        (
            CAST(
                strftime(
                    :strftime_5,
                    substr(
                        CASE
                            WHEN (
                                (
                                    SELECT newest.created_at
                                    FROM execution_events AS newest
                                    ORDER BY newest.sequence_num DESC
                                    LIMIT :param_3
                                    OFFSET :param_4
                                ) > :now
                            ) THEN (
                                SELECT newest.created_at
                                FROM execution_events AS newest
                                ORDER BY newest.sequence_num DESC
                                LIMIT :param_3
                                OFFSET :param_5
                            )
                            ELSE :now
                        END,
                        :substr_5,
                        :substr_6
                    )
                ) AS INTEGER
            ) * :param_6 + CAST(
                substr(
                    CASE
                        WHEN (
                            (
                                SELECT newest.created_at
                                FROM execution_events AS newest
                                ORDER BY newest.sequence_num DESC
                                LIMIT :param_3
                                OFFSET :param_7
                            ) > :now
                        ) THEN (
                            SELECT newest.created_at
                            FROM execution_events AS newest
                            ORDER BY newest.sequence_num DESC
                            LIMIT :param_3
                            OFFSET :param_8
                        )
                        ELSE :now
                    END,
                    :substr_7,
                    :substr_8
                ) AS INTEGER
            ) + CAST(round(86400.0 * :param_9) AS INTEGER)
        ) / 1000000,
        :strftime_6
    ) || printf(
        :printf_2,
        (
            CAST(
                strftime(
                    :strftime_5,
                    substr(
                        CASE
                            WHEN (
                                (
                                    SELECT newest.created_at
                                    FROM execution_events AS newest
                                    ORDER BY newest.sequence_num DESC
                                    LIMIT :param_3
                                    OFFSET :param_10
                                ) > :now
                            ) THEN (
                                SELECT newest.created_at
                                FROM execution_events AS newest
                                ORDER BY newest.sequence_num DESC
                                LIMIT :param_3
                                OFFSET :param_11
                            )
                            ELSE :now
                        END,
                        :substr_5,
                        :substr_6
                    )
                ) AS INTEGER
            ) * :param_6 + CAST(
                substr(
                    CASE
                        WHEN (
                            (
                                SELECT newest.created_at
                                FROM execution_events AS newest
                                ORDER BY newest.sequence_num DESC
                                LIMIT :param_3
                                OFFSET :param_12
                            ) > :now
                        ) THEN (
                            SELECT newest.created_at
                            FROM execution_events AS newest
                            ORDER BY newest.sequence_num DESC
                            LIMIT :param_3
                            OFFSET :param_13
                        )
                        ELSE :now
                    END,
                    :substr_7,
                    :substr_8
                ) AS INTEGER
            ) + CAST(round(86400.0 * :param_9) AS INTEGER)
        ) % 1000000
    )
)
RETURNING relay AS id
