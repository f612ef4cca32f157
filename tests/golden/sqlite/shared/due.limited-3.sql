SELECT
    queue_settings.queue AS queue,
    coalesce(queue_settings.key_concurrency, 1) AS key_concurrency,
    strftime(
        :strftime_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(
                round(
                    (
                        queue_settings.key_rate_seconds - queue_settings.key_rate_seconds / (
                            queue_settings.key_rate_limit + 0.0
                        )
                    ) * :param_2
                ) AS INTEGER
            )
        ) / 1000000,
        :strftime_3
    ) || printf(
        :printf_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(
                round(
                    (
                        queue_settings.key_rate_seconds - queue_settings.key_rate_seconds / (
                            queue_settings.key_rate_limit + 0.0
                        )
                    ) * :param_2
                ) AS INTEGER
            )
        ) % 1000000
    ) AS blocked_after,
    strftime(
        :strftime_4,
        (
            CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_3 + CAST(
                substr(:now, :substr_7, :substr_8) AS INTEGER
            ) + CAST(round(queue_settings.key_rate_seconds * 2 * :param_4) AS INTEGER)
        ) / 1000000,
        :strftime_6
    ) || printf(
        :printf_2,
        (
            CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_3 + CAST(
                substr(:now, :substr_7, :substr_8) AS INTEGER
            ) + CAST(round(queue_settings.key_rate_seconds * 2 * :param_4) AS INTEGER)
        ) % 1000000
    ) AS blocked_until,
    queue_settings.key_rate_seconds - queue_settings.key_rate_seconds / (queue_settings.key_rate_limit + 0.0) AS room
FROM queue_settings
WHERE
    (queue_settings.key_concurrency IS NOT NULL OR queue_settings.key_rate_limit IS NOT NULL)
    AND queue_settings.paused_at IS NULL
    AND (
        queue_settings.concurrency_limit IS NULL
            OR queue_settings.concurrency_limit > (
                SELECT count(*) AS count_1
                FROM task_leases AS lease
                WHERE lease.queue = queue_settings.queue
            )
    )
    AND (
        CASE WHEN (
            queue_settings.rate_full_at <= (
                strftime(
                    :strftime_7,
                    (
                        CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_5 + CAST(
                            substr(:now, :substr_11, :substr_12) AS INTEGER
                        ) + CAST(round(queue_settings.rate_seconds * 2 * :param_6) AS INTEGER)
                    ) / 1000000,
                    :strftime_9
                ) || printf(
                    :printf_3,
                    (
                        CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_5 + CAST(
                            substr(:now, :substr_11, :substr_12) AS INTEGER
                        ) + CAST(round(queue_settings.rate_seconds * 2 * :param_6) AS INTEGER)
                    ) % 1000000
                )
            )
        ) THEN strftime(
            :strftime_10,
            (
                CAST(
                    strftime(:strftime_11, substr(queue_settings.rate_full_at, :substr_13, :substr_14)) AS INTEGER
                ) * :param_7 + CAST(substr(queue_settings.rate_full_at, :substr_15, :substr_16) AS INTEGER) + CAST(
                    round(
                        (
                            -(
                                queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                    queue_settings.rate_limit + 0.0
                                )
                            )
                        ) * :param_8
                    ) AS INTEGER
                )
            ) / 1000000,
            :strftime_12
        ) || printf(
            :printf_4,
            (
                CAST(
                    strftime(:strftime_11, substr(queue_settings.rate_full_at, :substr_13, :substr_14)) AS INTEGER
                ) * :param_7 + CAST(substr(queue_settings.rate_full_at, :substr_15, :substr_16) AS INTEGER) + CAST(
                    round(
                        (
                            -(
                                queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                    queue_settings.rate_limit + 0.0
                                )
                            )
                        ) * :param_8
                    ) AS INTEGER
                )
            ) % 1000000
        ) END IS NULL
            OR CASE
                WHEN (
                    queue_settings.rate_full_at <= (
                        strftime(
                            :strftime_7,
                            (
                                CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_5 + CAST(
                                    substr(:now, :substr_11, :substr_12) AS INTEGER
                                ) + CAST(round(queue_settings.rate_seconds * 2 * :param_6) AS INTEGER)
                            ) / 1000000,
                            :strftime_9
                        ) || printf(
                            :printf_3,
                            (
                                CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_5 + CAST(
                                    substr(:now, :substr_11, :substr_12) AS INTEGER
                                ) + CAST(round(queue_settings.rate_seconds * 2 * :param_6) AS INTEGER)
                            ) % 1000000
                        )
                    )
                ) THEN strftime(
                    :strftime_10,
                    (
                        CAST(
                            strftime(
                                :strftime_11,
                                substr(queue_settings.rate_full_at, :substr_13, :substr_14)
                            ) AS INTEGER
                        ) * :param_7 + CAST(
                            substr(queue_settings.rate_full_at, :substr_15, :substr_16) AS INTEGER
                        ) + CAST(
                            round(
                                (
                                    -(
                                        queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                            queue_settings.rate_limit + 0.0
                                        )
                                    )
                                ) * :param_8
                            ) AS INTEGER
                        )
                    ) / 1000000,
                    :strftime_12
                ) || printf(
                    :printf_4,
                    (
                        CAST(
                            strftime(
                                :strftime_11,
                                substr(queue_settings.rate_full_at, :substr_13, :substr_14)
                            ) AS INTEGER
                        ) * :param_7 + CAST(
                            substr(queue_settings.rate_full_at, :substr_15, :substr_16) AS INTEGER
                        ) + CAST(
                            round(
                                (
                                    -(
                                        queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                            queue_settings.rate_limit + 0.0
                                        )
                                    )
                                ) * :param_8
                            ) AS INTEGER
                        )
                    ) % 1000000
                )
            END <= :now
    )
    AND (
        EXISTS (
            SELECT queues.queue
            FROM queues
            WHERE queue_settings.queue = queues.queue
        )
    )
