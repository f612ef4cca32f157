SELECT
    task_schedules.name,
    task_schedules.task_name,
    task_schedules.args,
    task_schedules.queue,
    task_schedules.priority,
    task_schedules.max_attempts,
    task_schedules.lease_seconds,
    task_schedules.timeout_seconds,
    task_schedules.on_dead_letter,
    task_schedules.rule,
    task_schedules.tz,
    task_schedules.overlap,
    task_schedules.catch_up,
    task_schedules.catch_up_limit,
    task_schedules.grace_seconds,
    task_schedules.jitter_seconds,
    task_schedules.starts_at,
    task_schedules.ends_at,
    task_schedules.declared_by,
    task_schedules.declaration,
    task_schedules.planted_until,
    task_schedules.paused_at,
    task_schedules.pause_reason,
    task_schedules.created_at,
    task_schedules.updated_at,
    task_schedules.planted_until > (
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
        ) AS planted_wrongly
FROM task_schedules
WHERE
    task_schedules.paused_at IS NULL
    AND (
        task_schedules.planted_until < :until
            OR task_schedules.planted_until > (
                strftime(
                    :strftime_10,
                    (
                        CAST(strftime(:strftime_11, substr(:now, :substr_13, :substr_14)) AS INTEGER) * :param_7 + CAST(
                            substr(:now, :substr_15, :substr_16) AS INTEGER
                        ) + CAST(round(60.0 * :param_8) AS INTEGER)
                    ) / 1000000,
                    :strftime_12
                ) || printf(
                    :printf_4,
                    (
                        CAST(strftime(:strftime_11, substr(:now, :substr_13, :substr_14)) AS INTEGER) * :param_7 + CAST(
                            substr(:now, :substr_15, :substr_16) AS INTEGER
                        ) + CAST(round(60.0 * :param_8) AS INTEGER)
                    ) % 1000000
                )
            )
            AND (
                task_schedules.updated_at > (
                    strftime(
                        :strftime_10,
                        (
                            CAST(strftime(:strftime_11, substr(:now, :substr_13, :substr_14)) AS INTEGER) * :param_7 + CAST(
                                substr(:now, :substr_15, :substr_16) AS INTEGER
                            ) + CAST(round(60.0 * :param_8) AS INTEGER)
                        ) / 1000000,
                        :strftime_12
                    ) || printf(
                        :printf_4,
                        (
                            CAST(strftime(:strftime_11, substr(:now, :substr_13, :substr_14)) AS INTEGER) * :param_7 + CAST(
                                substr(:now, :substr_15, :substr_16) AS INTEGER
                            ) + CAST(round(60.0 * :param_8) AS INTEGER)
                        ) % 1000000
                    )
                )
                    OR task_schedules.planted_until > (
                        strftime(
                            :strftime_13,
                            (
                                CAST(strftime(:strftime_14, substr(:now, :substr_17, :substr_18)) AS INTEGER) * :param_9 + CAST(
                                    substr(:now, :substr_19, :substr_20) AS INTEGER
                                ) + CAST(round(86460.0 * :param_10) AS INTEGER)
                            ) / 1000000,
                            :strftime_15
                        ) || printf(
                            :printf_5,
                            (
                                CAST(strftime(:strftime_14, substr(:now, :substr_17, :substr_18)) AS INTEGER) * :param_9 + CAST(
                                    substr(:now, :substr_19, :substr_20) AS INTEGER
                                ) + CAST(round(86460.0 * :param_10) AS INTEGER)
                            ) % 1000000
                        )
                    )
            )
            AND (
                task_schedules.updated_at > (
                    strftime(
                        :strftime_16,
                        (
                            CAST(strftime(:strftime_17, substr(:now, :substr_21, :substr_22)) AS INTEGER) * :param_11 + CAST(
                                substr(:now, :substr_23, :substr_24) AS INTEGER
                            ) + CAST(round(60.0 * :param_12) AS INTEGER)
                        ) / 1000000,
                        :strftime_18
                    ) || printf(
                        :printf_6,
                        (
                            CAST(strftime(:strftime_17, substr(:now, :substr_21, :substr_22)) AS INTEGER) * :param_11 + CAST(
                                substr(:now, :substr_23, :substr_24) AS INTEGER
                            ) + CAST(round(60.0 * :param_12) AS INTEGER)
                        ) % 1000000
                    )
                )
                    OR NOT (
                        EXISTS (
                            /* schedules.schedule_ticks-1: strftime_16, strftime_17, substr_21, substr_22, param_11, substr_23, substr_24, param_12, strftime_18, printf_6 */
                        )
                    )
            )
    )
    AND task_schedules.name > :after
ORDER BY task_schedules.name
LIMIT :limit
OFFSET :param_13
