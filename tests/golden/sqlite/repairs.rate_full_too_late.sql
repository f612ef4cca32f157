-- moved
UPDATE queue_settings
SET rate_full_at=(
    strftime(
        :strftime_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(queue_settings.rate_seconds * :rate_seconds_1) AS INTEGER)
        ) / 1000000,
        :strftime_3
    ) || printf(
        :printf_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(queue_settings.rate_seconds * :rate_seconds_1) AS INTEGER)
        ) % 1000000
    )
)
WHERE queue_settings.rate_full_at > (
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
                                    LIMIT :param_2
                                    OFFSET :param_3
                                ) > :now
                            ) THEN (
                                SELECT newest.created_at
                                FROM execution_events AS newest
                                ORDER BY newest.sequence_num DESC
                                LIMIT :param_2
                                OFFSET :param_4
                            )
                            ELSE :now
                        END,
                        :substr_5,
                        :substr_6
                    )
                ) AS INTEGER
            ) * :param_5 + CAST(
                substr(
                    CASE
                        WHEN (
                            (
                                SELECT newest.created_at
                                FROM execution_events AS newest
                                ORDER BY newest.sequence_num DESC
                                LIMIT :param_2
                                OFFSET :param_6
                            ) > :now
                        ) THEN (
                            SELECT newest.created_at
                            FROM execution_events AS newest
                            ORDER BY newest.sequence_num DESC
                            LIMIT :param_2
                            OFFSET :param_7
                        )
                        ELSE :now
                    END,
                    :substr_7,
                    :substr_8
                ) AS INTEGER
            ) + CAST(round((queue_settings.rate_seconds + 86400.0) * :param_8) AS INTEGER)
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
                                    LIMIT :param_2
                                    OFFSET :param_9
                                ) > :now
                            ) THEN (
                                SELECT newest.created_at
                                FROM execution_events AS newest
                                ORDER BY newest.sequence_num DESC
                                LIMIT :param_2
                                OFFSET :param_10
                            )
                            ELSE :now
                        END,
                        :substr_5,
                        :substr_6
                    )
                ) AS INTEGER
            ) * :param_5 + CAST(
                substr(
                    CASE
                        WHEN (
                            (
                                SELECT newest.created_at
                                FROM execution_events AS newest
                                ORDER BY newest.sequence_num DESC
                                LIMIT :param_2
                                OFFSET :param_11
                            ) > :now
                        ) THEN (
                            SELECT newest.created_at
                            FROM execution_events AS newest
                            ORDER BY newest.sequence_num DESC
                            LIMIT :param_2
                            OFFSET :param_12
                        )
                        ELSE :now
                    END,
                    :substr_7,
                    :substr_8
                ) AS INTEGER
            ) + CAST(round((queue_settings.rate_seconds + 86400.0) * :param_8) AS INTEGER)
        ) % 1000000
    )
)
RETURNING queue AS id, queue
