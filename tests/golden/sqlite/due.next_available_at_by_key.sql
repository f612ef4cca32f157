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
    waiting_pairs(queue, priority) AS (
        SELECT
            queues.queue AS queue,
            (
                SELECT entry.priority
                FROM task_outbox AS entry
                WHERE entry.queue = queues.queue AND entry.partition_key IS NULL
                ORDER BY entry.priority DESC
                LIMIT :param_3
                OFFSET :param_4
            ) AS priority
        FROM queues
        WHERE
            queues.queue IS NOT NULL
            AND (
                SELECT mine.queue
                FROM queue_settings AS mine
                WHERE mine.queue = queues.queue AND mine.paused_at IS NOT NULL
            ) IS NULL
        UNION ALL
        SELECT
            waiting_pairs.queue AS queue,
            (
                SELECT entry.priority
                FROM task_outbox AS entry
                WHERE
                    entry.queue = waiting_pairs.queue
                    AND entry.partition_key IS NULL
                    AND entry.priority < waiting_pairs.priority
                ORDER BY entry.priority DESC
                LIMIT :param_5
                OFFSET :param_6
            ) AS anon_2
        FROM waiting_pairs
        WHERE waiting_pairs.priority IS NOT NULL
    ),
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
        SELECT
            queue_settings.queue AS queue,
            coalesce(queue_settings.key_concurrency, 1) AS key_concurrency,
            strftime(
                :strftime_7,
                (
                    CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_25 + CAST(
                        substr(:now, :substr_11, :substr_12) AS INTEGER
                    ) + CAST(
                        round(
                            (
                                queue_settings.key_rate_seconds - queue_settings.key_rate_seconds / (
                                    queue_settings.key_rate_limit + 0.0
                                )
                            ) * :param_26
                        ) AS INTEGER
                    )
                ) / 1000000,
                :strftime_9
            ) || printf(
                :printf_3,
                (
                    CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_25 + CAST(
                        substr(:now, :substr_11, :substr_12) AS INTEGER
                    ) + CAST(
                        round(
                            (
                                queue_settings.key_rate_seconds - queue_settings.key_rate_seconds / (
                                    queue_settings.key_rate_limit + 0.0
                                )
                            ) * :param_26
                        ) AS INTEGER
                    )
                ) % 1000000
            ) AS blocked_after,
            strftime(
                :strftime_10,
                (
                    CAST(strftime(:strftime_11, substr(:now, :substr_13, :substr_14)) AS INTEGER) * :param_27 + CAST(
                        substr(:now, :substr_15, :substr_16) AS INTEGER
                    ) + CAST(round(queue_settings.key_rate_seconds * 2 * :param_28) AS INTEGER)
                ) / 1000000,
                :strftime_12
            ) || printf(
                :printf_4,
                (
                    CAST(strftime(:strftime_11, substr(:now, :substr_13, :substr_14)) AS INTEGER) * :param_27 + CAST(
                        substr(:now, :substr_15, :substr_16) AS INTEGER
                    ) + CAST(round(queue_settings.key_rate_seconds * 2 * :param_28) AS INTEGER)
                ) % 1000000
            ) AS blocked_until,
            queue_settings.key_rate_seconds - queue_settings.key_rate_seconds / (
                queue_settings.key_rate_limit + 0.0
            ) AS room
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
                (
                    strftime(
                        :strftime_13,
                        (
                            CAST(
                                strftime(
                                    :strftime_14,
                                    substr(queue_settings.rate_full_at, :substr_17, :substr_18)
                                ) AS INTEGER
                            ) * :param_29 + CAST(
                                substr(queue_settings.rate_full_at, :substr_19, :substr_20) AS INTEGER
                            ) + CAST(
                                round(
                                    (
                                        -(
                                            queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                                queue_settings.rate_limit + 0.0
                                            )
                                        )
                                    ) * :param_30
                                ) AS INTEGER
                            )
                        ) / 1000000,
                        :strftime_15
                    ) || printf(
                        :printf_5,
                        (
                            CAST(
                                strftime(
                                    :strftime_14,
                                    substr(queue_settings.rate_full_at, :substr_17, :substr_18)
                                ) AS INTEGER
                            ) * :param_29 + CAST(
                                substr(queue_settings.rate_full_at, :substr_19, :substr_20) AS INTEGER
                            ) + CAST(
                                round(
                                    (
                                        -(
                                            queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                                queue_settings.rate_limit + 0.0
                                            )
                                        )
                                    ) * :param_30
                                ) AS INTEGER
                            )
                        ) % 1000000
                    )
                ) IS NULL
                    OR (
                        strftime(
                            :strftime_13,
                            (
                                CAST(
                                    strftime(
                                        :strftime_14,
                                        substr(queue_settings.rate_full_at, :substr_17, :substr_18)
                                    ) AS INTEGER
                                ) * :param_29 + CAST(
                                    substr(queue_settings.rate_full_at, :substr_19, :substr_20) AS INTEGER
                                ) + CAST(
                                    round(
                                        (
                                            -(
                                                queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                                    queue_settings.rate_limit + 0.0
                                                )
                                            )
                                        ) * :param_30
                                    ) AS INTEGER
                                )
                            ) / 1000000,
                            :strftime_15
                        ) || printf(
                            :printf_5,
                            (
                                CAST(
                                    strftime(
                                        :strftime_14,
                                        substr(queue_settings.rate_full_at, :substr_17, :substr_18)
                                    ) AS INTEGER
                                ) * :param_29 + CAST(
                                    substr(queue_settings.rate_full_at, :substr_19, :substr_20) AS INTEGER
                                ) + CAST(
                                    round(
                                        (
                                            -(
                                                queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                                    queue_settings.rate_limit + 0.0
                                                )
                                            )
                                        ) * :param_30
                                    ) AS INTEGER
                                )
                            ) % 1000000
                        )
                    ) <= :now
            )
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
    SELECT strftime(
        :strftime_1,
        (
            CAST(strftime(:strftime_2, substr(queue_settings.rate_full_at, :substr_1, :substr_2)) AS INTEGER) * :param_9 + CAST(
                substr(queue_settings.rate_full_at, :substr_3, :substr_4) AS INTEGER
            ) + CAST(
                round(
                    (
                        -(
                            queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                queue_settings.rate_limit + 0.0
                            )
                        )
                    ) * :param_10
                ) AS INTEGER
            )
        ) / 1000000,
        :strftime_3
    ) || printf(
        :printf_1,
        (
            CAST(strftime(:strftime_2, substr(queue_settings.rate_full_at, :substr_1, :substr_2)) AS INTEGER) * :param_9 + CAST(
                substr(queue_settings.rate_full_at, :substr_3, :substr_4) AS INTEGER
            ) + CAST(
                round(
                    (
                        -(
                            queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                queue_settings.rate_limit + 0.0
                            )
                        )
                    ) * :param_10
                ) AS INTEGER
            )
        ) % 1000000
    ) AS available_at
    FROM queue_settings
    WHERE
        (
            strftime(
                :strftime_1,
                (
                    CAST(
                        strftime(:strftime_2, substr(queue_settings.rate_full_at, :substr_1, :substr_2)) AS INTEGER
                    ) * :param_9 + CAST(substr(queue_settings.rate_full_at, :substr_3, :substr_4) AS INTEGER) + CAST(
                        round(
                            (
                                -(
                                    queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                        queue_settings.rate_limit + 0.0
                                    )
                                )
                            ) * :param_10
                        ) AS INTEGER
                    )
                ) / 1000000,
                :strftime_3
            ) || printf(
                :printf_1,
                (
                    CAST(
                        strftime(:strftime_2, substr(queue_settings.rate_full_at, :substr_1, :substr_2)) AS INTEGER
                    ) * :param_9 + CAST(substr(queue_settings.rate_full_at, :substr_3, :substr_4) AS INTEGER) + CAST(
                        round(
                            (
                                -(
                                    queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                        queue_settings.rate_limit + 0.0
                                    )
                                )
                            ) * :param_10
                        ) AS INTEGER
                    )
                ) % 1000000
            )
        ) > :now
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
        :strftime_4,
        (
            CAST(
                strftime(
                    :strftime_5,
                    substr(
                        coalesce(
                            (
                                SELECT spent.full_at
                                FROM (
                                    SELECT
                                        key_rates.queue AS queue,
                                        key_rates.partition_key AS partition_key,
                                        key_rates.full_at AS full_at
                                    FROM key_rates
                                    WHERE
                                        key_rates.queue = limited.queue
                                        AND key_rates.full_at > limited.blocked_after
                                        AND key_rates.full_at <= limited.blocked_until
                                    ORDER BY key_rates.full_at
                                    LIMIT 1000
                                    OFFSET :param_11
                                ) AS spent
                                WHERE (
                                    SELECT entry_of_key.id
                                    FROM task_outbox AS entry_of_key
                                    WHERE
                                        entry_of_key.queue = spent.queue
                                        AND entry_of_key.partition_key = spent.partition_key
                                    LIMIT 1
                                    OFFSET :param_12
                                ) IS NOT NULL
                                ORDER BY spent.full_at
                                LIMIT 1
                                OFFSET :param_13
                            ),
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
                        :substr_5,
                        :substr_6
                    )
                ) AS INTEGER
            ) * :param_14 + CAST(
                substr(
                    coalesce(
                        (
                            SELECT spent.full_at
                            FROM (
                                SELECT
                                    key_rates.queue AS queue,
                                    key_rates.partition_key AS partition_key,
                                    key_rates.full_at AS full_at
                                FROM key_rates
                                WHERE
                                    key_rates.queue = limited.queue
                                    AND key_rates.full_at > limited.blocked_after
                                    AND key_rates.full_at <= limited.blocked_until
                                ORDER BY key_rates.full_at
                                LIMIT 1000
                                OFFSET :param_15
                            ) AS spent
                            WHERE (
                                SELECT entry_of_key.id
                                FROM task_outbox AS entry_of_key
                                WHERE
                                    entry_of_key.queue = spent.queue
                                    AND entry_of_key.partition_key = spent.partition_key
                                LIMIT 1
                                OFFSET :param_16
                            ) IS NOT NULL
                            ORDER BY spent.full_at
                            LIMIT 1
                            OFFSET :param_17
                        ),
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
                    :substr_7,
                    :substr_8
                ) AS INTEGER
            ) + CAST(round((-limited.room) * :param_18) AS INTEGER)
        ) / 1000000,
        :strftime_6
    ) || printf(
        :printf_2,
        (
            CAST(
                strftime(
                    :strftime_5,
                    substr(
                        coalesce(
                            (
                                SELECT spent.full_at
                                FROM (
                                    SELECT
                                        key_rates.queue AS queue,
                                        key_rates.partition_key AS partition_key,
                                        key_rates.full_at AS full_at
                                    FROM key_rates
                                    WHERE
                                        key_rates.queue = limited.queue
                                        AND key_rates.full_at > limited.blocked_after
                                        AND key_rates.full_at <= limited.blocked_until
                                    ORDER BY key_rates.full_at
                                    LIMIT 1000
                                    OFFSET :param_19
                                ) AS spent
                                WHERE (
                                    SELECT entry_of_key.id
                                    FROM task_outbox AS entry_of_key
                                    WHERE
                                        entry_of_key.queue = spent.queue
                                        AND entry_of_key.partition_key = spent.partition_key
                                    LIMIT 1
                                    OFFSET :param_20
                                ) IS NOT NULL
                                ORDER BY spent.full_at
                                LIMIT 1
                                OFFSET :param_21
                            ),
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
                        :substr_5,
                        :substr_6
                    )
                ) AS INTEGER
            ) * :param_14 + CAST(
                substr(
                    coalesce(
                        (
                            SELECT spent.full_at
                            FROM (
                                SELECT
                                    key_rates.queue AS queue,
                                    key_rates.partition_key AS partition_key,
                                    key_rates.full_at AS full_at
                                FROM key_rates
                                WHERE
                                    key_rates.queue = limited.queue
                                    AND key_rates.full_at > limited.blocked_after
                                    AND key_rates.full_at <= limited.blocked_until
                                ORDER BY key_rates.full_at
                                LIMIT 1000
                                OFFSET :param_22
                            ) AS spent
                            WHERE (
                                SELECT entry_of_key.id
                                FROM task_outbox AS entry_of_key
                                WHERE
                                    entry_of_key.queue = spent.queue
                                    AND entry_of_key.partition_key = spent.partition_key
                                LIMIT 1
                                OFFSET :param_23
                            ) IS NOT NULL
                            ORDER BY spent.full_at
                            LIMIT 1
                            OFFSET :param_24
                        ),
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
                    :substr_7,
                    :substr_8
                ) AS INTEGER
            ) + CAST(round((-limited.room) * :param_18) AS INTEGER)
        ) % 1000000
    ) AS available_at
    FROM limited
) AS moments
