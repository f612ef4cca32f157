-- moved
UPDATE relays
SET next_try_at=:now
WHERE relays.next_try_at > (
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
)
RETURNING name AS id
