WITH RECURSIVE
    queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NULL
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_1
            FROM task_outbox AS entry
            WHERE entry.queue > queues.queue AND entry.partition_key IS NULL
        ) AS anon_1
        FROM queues
        WHERE queues.queue IS NOT NULL
    ),
    waiting_pairs(queue, priority) AS (/* due.waiting_pairs-1: param_3, param_4, param_5, param_6, anon_2 */),
    keyed_queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NOT NULL
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_2
            FROM task_outbox AS entry
            WHERE entry.queue > keyed_queues.queue AND entry.partition_key IS NOT NULL
        ) AS anon_3
        FROM keyed_queues
        WHERE keyed_queues.queue IS NOT NULL
    ),
    limited AS MATERIALIZED (
        /* due.limited-1: strftime_10, strftime_11, substr_13, substr_14, param_27, substr_15, substr_16, param_28, strftime_12, printf_4, strftime_13, strftime_14, substr_17, substr_18, param_29, substr_19, substr_20, param_30, strftime_15, printf_5, count_1, strftime_16, strftime_17, substr_21, substr_22, param_31, substr_23, substr_24, param_32, strftime_18, printf_6, strftime_19, strftime_20, substr_25, substr_26, param_33, substr_27, substr_28, param_34, strftime_21, printf_7 */
    )
SELECT min(moments.available_at) AS available_at
FROM (
    SELECT (
        SELECT entry_later.available_at
        FROM task_outbox AS entry_later
        WHERE
            entry_later.partition_key IS NULL
            AND entry_later.queue = waiting_pairs.queue
            AND entry_later.priority = waiting_pairs.priority
            AND entry_later.available_at > :now
        ORDER BY entry_later.available_at, entry_later.id
        LIMIT :param_1
        OFFSET :param_2
    ) AS available_at
    FROM waiting_pairs
    UNION ALL
    SELECT (
        SELECT keyed_later.available_at
        FROM task_outbox AS keyed_later
        WHERE
            keyed_later.queue = keyed_queues.queue
            AND keyed_later.partition_key IS NOT NULL
            AND keyed_later.available_at > :now
        ORDER BY keyed_later.available_at, keyed_later.id
        LIMIT :param_7
        OFFSET :param_8
    ) AS available_at
    FROM keyed_queues
    WHERE (
        SELECT mine.queue
        FROM queue_settings AS mine
        WHERE mine.queue = keyed_queues.queue AND mine.paused_at IS NOT NULL
    ) IS NULL
    UNION ALL
    SELECT CASE
        WHEN (
            queue_settings.rate_full_at <= (
                strftime(
                    :strftime_1,
                    (
                        CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_9 + CAST(
                            substr(:now, :substr_3, :substr_4) AS INTEGER
                        ) + CAST(round(queue_settings.rate_seconds * 2 * :param_10) AS INTEGER)
                    ) / 1000000,
                    :strftime_3
                ) || printf(
                    :printf_1,
                    (
                        CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_9 + CAST(
                            substr(:now, :substr_3, :substr_4) AS INTEGER
                        ) + CAST(round(queue_settings.rate_seconds * 2 * :param_10) AS INTEGER)
                    ) % 1000000
                )
            )
        ) THEN strftime(
            :strftime_4,
            (
                CAST(
                    strftime(:strftime_5, substr(queue_settings.rate_full_at, :substr_5, :substr_6)) AS INTEGER
                ) * :param_11 + CAST(substr(queue_settings.rate_full_at, :substr_7, :substr_8) AS INTEGER) + CAST(
                    round(
                        (
                            -(
                                queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                    queue_settings.rate_limit + 0.0
                                )
                            )
                        ) * :param_12
                    ) AS INTEGER
                )
            ) / 1000000,
            :strftime_6
        ) || printf(
            :printf_2,
            (
                CAST(
                    strftime(:strftime_5, substr(queue_settings.rate_full_at, :substr_5, :substr_6)) AS INTEGER
                ) * :param_11 + CAST(substr(queue_settings.rate_full_at, :substr_7, :substr_8) AS INTEGER) + CAST(
                    round(
                        (
                            -(
                                queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                    queue_settings.rate_limit + 0.0
                                )
                            )
                        ) * :param_12
                    ) AS INTEGER
                )
            ) % 1000000
        )
    END AS available_at
    FROM queue_settings
    WHERE
        CASE
            WHEN (
                queue_settings.rate_full_at <= (
                    strftime(
                        :strftime_1,
                        (
                            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_9 + CAST(
                                substr(:now, :substr_3, :substr_4) AS INTEGER
                            ) + CAST(round(queue_settings.rate_seconds * 2 * :param_10) AS INTEGER)
                        ) / 1000000,
                        :strftime_3
                    ) || printf(
                        :printf_1,
                        (
                            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_9 + CAST(
                                substr(:now, :substr_3, :substr_4) AS INTEGER
                            ) + CAST(round(queue_settings.rate_seconds * 2 * :param_10) AS INTEGER)
                        ) % 1000000
                    )
                )
            ) THEN strftime(
                :strftime_4,
                (
                    CAST(
                        strftime(:strftime_5, substr(queue_settings.rate_full_at, :substr_5, :substr_6)) AS INTEGER
                    ) * :param_11 + CAST(substr(queue_settings.rate_full_at, :substr_7, :substr_8) AS INTEGER) + CAST(
                        round(
                            (
                                -(
                                    queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                        queue_settings.rate_limit + 0.0
                                    )
                                )
                            ) * :param_12
                        ) AS INTEGER
                    )
                ) / 1000000,
                :strftime_6
            ) || printf(
                :printf_2,
                (
                    CAST(
                        strftime(:strftime_5, substr(queue_settings.rate_full_at, :substr_5, :substr_6)) AS INTEGER
                    ) * :param_11 + CAST(substr(queue_settings.rate_full_at, :substr_7, :substr_8) AS INTEGER) + CAST(
                        round(
                            (
                                -(
                                    queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                        queue_settings.rate_limit + 0.0
                                    )
                                )
                            ) * :param_12
                        ) AS INTEGER
                    )
                ) % 1000000
            )
        END > :now
        AND queue_settings.paused_at IS NULL
        AND (
            EXISTS (
                SELECT asked.queue
                FROM (
                    SELECT queues.queue AS queue
                    FROM queues
                    UNION ALL
                    SELECT keyed_queues.queue AS queue
                    FROM keyed_queues
                ) AS asked
                WHERE queue_settings.queue = asked.queue
            )
        )
    UNION ALL
    SELECT strftime(
        :strftime_7,
        (
            CAST(
                strftime(
                    :strftime_8,
                    substr(
                        coalesce(
                            (/* due.key_rates-4: param_13, param_14, param_15 */),
                            (
                                SELECT key_rates.full_at
                                FROM key_rates
                                WHERE
                                    key_rates.queue = limited.queue
                                    AND key_rates.full_at > limited.blocked_after
                                    AND key_rates.full_at <= limited.blocked_until
                                ORDER BY key_rates.full_at
                                LIMIT 1
                                OFFSET 999
                            )
                        ),
                        :substr_9,
                        :substr_10
                    )
                ) AS INTEGER
            ) * :param_16 + CAST(
                substr(
                    coalesce(
                        (/* due.key_rates-4: param_17, param_18, param_19 */),
                        (
                            SELECT key_rates.full_at
                            FROM key_rates
                            WHERE
                                key_rates.queue = limited.queue
                                AND key_rates.full_at > limited.blocked_after
                                AND key_rates.full_at <= limited.blocked_until
                            ORDER BY key_rates.full_at
                            LIMIT 1
                            OFFSET 999
                        )
                    ),
                    :substr_11,
                    :substr_12
                ) AS INTEGER
            ) + CAST(round((-limited.room) * :param_20) AS INTEGER)
        ) / 1000000,
        :strftime_9
    ) || printf(
        :printf_3,
        (
            CAST(
                strftime(
                    :strftime_8,
                    substr(
                        coalesce(
                            (/* due.key_rates-4: param_21, param_22, param_23 */),
                            (
                                SELECT key_rates.full_at
                                FROM key_rates
                                WHERE
                                    key_rates.queue = limited.queue
                                    AND key_rates.full_at > limited.blocked_after
                                    AND key_rates.full_at <= limited.blocked_until
                                ORDER BY key_rates.full_at
                                LIMIT 1
                                OFFSET 999
                            )
                        ),
                        :substr_9,
                        :substr_10
                    )
                ) AS INTEGER
            ) * :param_16 + CAST(
                substr(
                    coalesce(
                        (/* due.key_rates-4: param_24, param_25, param_26 */),
                        (
                            SELECT key_rates.full_at
                            FROM key_rates
                            WHERE
                                key_rates.queue = limited.queue
                                AND key_rates.full_at > limited.blocked_after
                                AND key_rates.full_at <= limited.blocked_until
                            ORDER BY key_rates.full_at
                            LIMIT 1
                            OFFSET 999
                        )
                    ),
                    :substr_11,
                    :substr_12
                ) AS INTEGER
            ) + CAST(round((-limited.room) * :param_20) AS INTEGER)
        ) % 1000000
    ) AS available_at
    FROM limited
) AS moments
