SELECT mine.queue
FROM queue_settings AS mine
WHERE
    mine.queue = keyed_queues.queue
    AND (
        mine.paused_at IS NOT NULL
            OR mine.key_concurrency IS NOT NULL
            OR mine.key_rate_limit IS NOT NULL
            OR mine.concurrency_limit IS NOT NULL
            AND mine.concurrency_limit <= (
                SELECT count(*) AS count_1
                FROM task_leases AS lease
                WHERE lease.queue = mine.queue
            )
            OR CASE
                WHEN (
                    mine.rate_full_at <= (
                        strftime(
                            :strftime_1,
                            (
                                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                                    substr(:now, :substr_3, :substr_4) AS INTEGER
                                ) + CAST(round(mine.rate_seconds * 2 * :param_2) AS INTEGER)
                            ) / 1000000,
                            :strftime_3
                        ) || printf(
                            :printf_1,
                            (
                                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                                    substr(:now, :substr_3, :substr_4) AS INTEGER
                                ) + CAST(round(mine.rate_seconds * 2 * :param_2) AS INTEGER)
                            ) % 1000000
                        )
                    )
                ) THEN strftime(
                    :strftime_4,
                    (
                        CAST(
                            strftime(:strftime_5, substr(mine.rate_full_at, :substr_5, :substr_6)) AS INTEGER
                        ) * :param_3 + CAST(substr(mine.rate_full_at, :substr_7, :substr_8) AS INTEGER) + CAST(
                            round(
                                (-(mine.rate_seconds - mine.rate_seconds / (mine.rate_limit + 0.0))) * :param_4
                            ) AS INTEGER
                        )
                    ) / 1000000,
                    :strftime_6
                ) || printf(
                    :printf_2,
                    (
                        CAST(
                            strftime(:strftime_5, substr(mine.rate_full_at, :substr_5, :substr_6)) AS INTEGER
                        ) * :param_3 + CAST(substr(mine.rate_full_at, :substr_7, :substr_8) AS INTEGER) + CAST(
                            round(
                                (-(mine.rate_seconds - mine.rate_seconds / (mine.rate_limit + 0.0))) * :param_4
                            ) AS INTEGER
                        )
                    ) % 1000000
                )
            END > :now
    )
