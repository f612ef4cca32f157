WITH RECURSIVE
    keyed_queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NOT NULL AND task_outbox.queue > :after
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_1
            FROM task_outbox AS entry
            WHERE entry.queue > keyed_queues.queue AND entry.partition_key IS NOT NULL
        ) AS anon_1
        FROM keyed_queues
        WHERE keyed_queues.queue IS NOT NULL
    ),
    limited_queues(queue) AS (
        SELECT (
            SELECT min(entry.queue) AS min_2
            FROM task_outbox AS entry
            WHERE
                entry.queue >= (
                    SELECT min(settings.queue) AS min_3
                    FROM queue_settings AS settings
                    WHERE
                        settings.queue > :after
                        AND (
                            settings.concurrency_limit IS NOT NULL
                                OR settings.rate_limit IS NOT NULL
                                OR settings.key_concurrency IS NOT NULL
                                OR settings.key_rate_limit IS NOT NULL
                        )
                )
                AND entry.partition_key IS NULL
        ) AS queue
        UNION ALL
        SELECT (
            SELECT (
                SELECT min(entry.queue) AS min_4
                FROM task_outbox AS entry
                WHERE
                    entry.queue >= (
                        SELECT min(settings.queue) AS min_5
                        FROM queue_settings AS settings
                        WHERE
                            settings.queue > limited_queues.queue
                            AND (
                                settings.concurrency_limit IS NOT NULL
                                    OR settings.rate_limit IS NOT NULL
                                    OR settings.key_concurrency IS NOT NULL
                                    OR settings.key_rate_limit IS NOT NULL
                            )
                    )
                    AND entry.partition_key IS NULL
            ) AS queue
        ) AS anon_2
        FROM limited_queues
        WHERE limited_queues.queue IS NOT NULL
    )
SELECT
    others.queue,
    (
        SELECT mine.queue
        FROM queue_settings AS mine
        WHERE
            mine.queue = others.queue
            AND (
                mine.concurrency_limit IS NOT NULL
                    OR mine.rate_limit IS NOT NULL
                    OR mine.key_concurrency IS NOT NULL
                    OR mine.key_rate_limit IS NOT NULL
            )
    ) IS NOT NULL AS limited,
    coalesce(
        (
            SELECT settings.fair
            FROM queue_settings AS settings
            WHERE settings.queue = others.queue
        ),
        true
    ) AS fair
FROM (
    SELECT first_keyed.queue AS queue
    FROM (
        SELECT keyed_queues.queue AS queue
        FROM keyed_queues
        WHERE
            keyed_queues.queue IS NOT NULL
            AND (
                SELECT mine.queue
                FROM queue_settings AS mine
                WHERE mine.queue = keyed_queues.queue AND mine.paused_at IS NOT NULL
            ) IS NULL
            AND (
                SELECT keyed_due.id
                FROM task_outbox AS keyed_due
                WHERE
                    keyed_due.queue = keyed_queues.queue
                    AND keyed_due.partition_key IS NOT NULL
                    AND keyed_due.available_at <= :now
                ORDER BY keyed_due.available_at
                LIMIT :param_1
                OFFSET :param_2
            ) IS NOT NULL
        LIMIT :most
        OFFSET :param_3
    ) AS first_keyed
    UNION
    SELECT first_limited.queue AS queue
    FROM (
        SELECT limited_queues.queue AS queue
        FROM limited_queues
        WHERE
            limited_queues.queue IS NOT NULL
            AND (
                SELECT mine.queue
                FROM queue_settings AS mine
                WHERE mine.queue = limited_queues.queue AND mine.paused_at IS NOT NULL
            ) IS NULL
            AND (
                SELECT mine.queue
                FROM queue_settings AS mine
                WHERE
                    mine.queue = limited_queues.queue
                    AND (
                        mine.concurrency_limit IS NOT NULL
                            OR mine.rate_limit IS NOT NULL
                            OR mine.key_concurrency IS NOT NULL
                            OR mine.key_rate_limit IS NOT NULL
                    )
            ) IS NOT NULL
        LIMIT :most
        OFFSET :param_4
    ) AS first_limited
) AS others
ORDER BY others.queue
LIMIT :most
OFFSET :param_5
