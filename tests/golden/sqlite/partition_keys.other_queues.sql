WITH RECURSIVE keyed_queues(queue) AS (
    SELECT min(task_outbox.queue) AS queue
    FROM task_outbox
    WHERE task_outbox.partition_key IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(entry.queue) AS min_1
        FROM task_outbox AS entry
        WHERE entry.queue > keyed_queues.queue AND entry.partition_key IS NOT NULL
    ) AS anon_1
    FROM keyed_queues
    WHERE keyed_queues.queue IS NOT NULL
)
SELECT
    others.queue,
    (
        SELECT keyed_due.id
        FROM task_outbox AS keyed_due
        WHERE
            keyed_due.queue = others.queue
            AND keyed_due.partition_key IS NOT NULL
            AND keyed_due.available_at <= :now
        ORDER BY keyed_due.available_at
        LIMIT :param_1
        OFFSET :param_2
    ) IS NOT NULL AS keyed,
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
    SELECT keyed_queues.queue AS queue
    FROM keyed_queues
    UNION
    SELECT queue_settings.queue AS queue
    FROM queue_settings
    WHERE
        queue_settings.concurrency_limit IS NOT NULL
        OR queue_settings.rate_limit IS NOT NULL
        OR queue_settings.key_concurrency IS NOT NULL
        OR queue_settings.key_rate_limit IS NOT NULL
) AS others
WHERE
    others.queue IS NOT NULL
    AND (
        SELECT mine.queue
        FROM queue_settings AS mine
        WHERE mine.queue = others.queue AND mine.paused_at IS NOT NULL
    ) IS NULL
    AND (
        (
            SELECT keyed_due.id
            FROM task_outbox AS keyed_due
            WHERE
                keyed_due.queue = others.queue
                AND keyed_due.partition_key IS NOT NULL
                AND keyed_due.available_at <= :now
            ORDER BY keyed_due.available_at
            LIMIT :param_1
            OFFSET :param_3
        ) IS NOT NULL
            OR (
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
            ) IS NOT NULL
    )
