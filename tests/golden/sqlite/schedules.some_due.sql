SELECT task_schedules.name
FROM task_schedules
WHERE
    task_schedules.paused_at IS NULL
    AND (
        task_schedules.planted_until < :until
            OR task_schedules.planted_until > (
                strftime(
                    :strftime_1,
                    (
                        CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                            substr(:now, :substr_3, :substr_4) AS INTEGER
                        ) + CAST(round(60.0 * :param_2) AS INTEGER)
                    ) / 1000000,
                    :strftime_3
                ) || printf(
                    :printf_1,
                    (
                        CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                            substr(:now, :substr_3, :substr_4) AS INTEGER
                        ) + CAST(round(60.0 * :param_2) AS INTEGER)
                    ) % 1000000
                )
            )
            AND (
                task_schedules.updated_at > (
                    strftime(
                        :strftime_1,
                        (
                            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                                substr(:now, :substr_3, :substr_4) AS INTEGER
                            ) + CAST(round(60.0 * :param_2) AS INTEGER)
                        ) / 1000000,
                        :strftime_3
                    ) || printf(
                        :printf_1,
                        (
                            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                                substr(:now, :substr_3, :substr_4) AS INTEGER
                            ) + CAST(round(60.0 * :param_2) AS INTEGER)
                        ) % 1000000
                    )
                )
                    OR task_schedules.planted_until > (
                        strftime(
                            :strftime_4,
                            (
                                CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_3 + CAST(
                                    substr(:now, :substr_7, :substr_8) AS INTEGER
                                ) + CAST(round(86460.0 * :param_4) AS INTEGER)
                            ) / 1000000,
                            :strftime_6
                        ) || printf(
                            :printf_2,
                            (
                                CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_3 + CAST(
                                    substr(:now, :substr_7, :substr_8) AS INTEGER
                                ) + CAST(round(86460.0 * :param_4) AS INTEGER)
                            ) % 1000000
                        )
                    )
            )
            AND (
                task_schedules.updated_at > (
                    strftime(
                        :strftime_7,
                        (
                            CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_5 + CAST(
                                substr(:now, :substr_11, :substr_12) AS INTEGER
                            ) + CAST(round(60.0 * :param_6) AS INTEGER)
                        ) / 1000000,
                        :strftime_9
                    ) || printf(
                        :printf_3,
                        (
                            CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_5 + CAST(
                                substr(:now, :substr_11, :substr_12) AS INTEGER
                            ) + CAST(round(60.0 * :param_6) AS INTEGER)
                        ) % 1000000
                    )
                )
                    OR NOT (
                        EXISTS (
                            /* schedules.schedule_ticks-1: strftime_7, strftime_8, substr_9, substr_10, param_5, substr_11, substr_12, param_6, strftime_9, printf_3 */
                        )
                    )
            )
    )
LIMIT :param_7
OFFSET :param_8
