WITH RECURSIVE
    queues AS MATERIALIZED (
        SELECT queues_rows."key" AS ordinal, queues_rows.value AS queue
        FROM json_each(:queues) AS queues_rows
    ),
    waiting_pairs(queue, priority) AS (/* due.waiting_pairs-1: param_5, param_6, param_7, param_8, anon_1 */)
SELECT
    min(moments.available_at) AS available_at,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT :param_1
        OFFSET :param_2
    ) IS NOT NULL AS by_key
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
        LIMIT :param_3
        OFFSET :param_4
    ) AS available_at
    FROM waiting_pairs
    UNION ALL
    SELECT (
        SELECT keyed_later.available_at
        FROM task_outbox AS keyed_later
        WHERE
            keyed_later.queue = queues.queue
            AND keyed_later.partition_key IS NOT NULL
            AND keyed_later.available_at > :now
        ORDER BY keyed_later.available_at, keyed_later.id
        LIMIT :param_9
        OFFSET :param_10
    ) AS available_at
    FROM queues
    WHERE (
        SELECT mine.queue
        FROM queue_settings AS mine
        WHERE mine.queue = queues.queue AND mine.paused_at IS NOT NULL
    ) IS NULL
    UNION ALL
    SELECT CASE
        WHEN (
            queue_settings.rate_full_at <= (
                strftime(
                    :strftime_1,
                    (
                        CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_11 + CAST(
                            substr(:now, :substr_3, :substr_4) AS INTEGER
                        ) + CAST(round(queue_settings.rate_seconds * 2 * :param_12) AS INTEGER)
                    ) / 1000000,
                    :strftime_3
                ) || printf(
                    :printf_1,
                    (
                        CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_11 + CAST(
                            substr(:now, :substr_3, :substr_4) AS INTEGER
                        ) + CAST(round(queue_settings.rate_seconds * 2 * :param_12) AS INTEGER)
                    ) % 1000000
                )
            )
        ) THEN strftime(
            :strftime_4,
            (
                CAST(
                    strftime(:strftime_5, substr(queue_settings.rate_full_at, :substr_5, :substr_6)) AS INTEGER
                ) * :param_13 + CAST(substr(queue_settings.rate_full_at, :substr_7, :substr_8) AS INTEGER) + CAST(
                    round(
                        (
                            -(
                                queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                    queue_settings.rate_limit + 0.0
                                )
                            )
                        ) * :param_14
                    ) AS INTEGER
                )
            ) / 1000000,
            :strftime_6
        ) || printf(
            :printf_2,
            (
                CAST(
                    strftime(:strftime_5, substr(queue_settings.rate_full_at, :substr_5, :substr_6)) AS INTEGER
                ) * :param_13 + CAST(substr(queue_settings.rate_full_at, :substr_7, :substr_8) AS INTEGER) + CAST(
                    round(
                        (
                            -(
                                queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                    queue_settings.rate_limit + 0.0
                                )
                            )
                        ) * :param_14
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
                            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_11 + CAST(
                                substr(:now, :substr_3, :substr_4) AS INTEGER
                            ) + CAST(round(queue_settings.rate_seconds * 2 * :param_12) AS INTEGER)
                        ) / 1000000,
                        :strftime_3
                    ) || printf(
                        :printf_1,
                        (
                            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_11 + CAST(
                                substr(:now, :substr_3, :substr_4) AS INTEGER
                            ) + CAST(round(queue_settings.rate_seconds * 2 * :param_12) AS INTEGER)
                        ) % 1000000
                    )
                )
            ) THEN strftime(
                :strftime_4,
                (
                    CAST(
                        strftime(:strftime_5, substr(queue_settings.rate_full_at, :substr_5, :substr_6)) AS INTEGER
                    ) * :param_13 + CAST(substr(queue_settings.rate_full_at, :substr_7, :substr_8) AS INTEGER) + CAST(
                        round(
                            (
                                -(
                                    queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                        queue_settings.rate_limit + 0.0
                                    )
                                )
                            ) * :param_14
                        ) AS INTEGER
                    )
                ) / 1000000,
                :strftime_6
            ) || printf(
                :printf_2,
                (
                    CAST(
                        strftime(:strftime_5, substr(queue_settings.rate_full_at, :substr_5, :substr_6)) AS INTEGER
                    ) * :param_13 + CAST(substr(queue_settings.rate_full_at, :substr_7, :substr_8) AS INTEGER) + CAST(
                        round(
                            (
                                -(
                                    queue_settings.rate_seconds - queue_settings.rate_seconds / (
                                        queue_settings.rate_limit + 0.0
                                    )
                                )
                            ) * :param_14
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
                    SELECT queues.queue AS queue
                    FROM queues
                ) AS asked
                WHERE queue_settings.queue = asked.queue
            )
        )
) AS moments
