WITH queues AS MATERIALIZED (
    SELECT queues_rows."key" AS ordinal, queues_rows.value AS queue
    FROM json_each(:queues) AS queues_rows
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
    SELECT queues.queue AS queue
    FROM queues
    WHERE
        queues.queue IS NOT NULL
        AND (
            SELECT mine.queue
            FROM queue_settings AS mine
            WHERE mine.queue = queues.queue AND mine.paused_at IS NOT NULL
        ) IS NULL
        AND (
            (
                SELECT keyed_due.id
                FROM task_outbox AS keyed_due
                WHERE
                    keyed_due.queue = queues.queue
                    AND keyed_due.partition_key IS NOT NULL
                    AND keyed_due.available_at <= :now
                ORDER BY keyed_due.available_at
                LIMIT :param_1
                OFFSET :param_2
            ) IS NOT NULL
                OR (
                    SELECT mine.queue
                    FROM queue_settings AS mine
                    WHERE
                        mine.queue = queues.queue
                        AND (
                            mine.concurrency_limit IS NOT NULL
                                OR mine.rate_limit IS NOT NULL
                                OR mine.key_concurrency IS NOT NULL
                                OR mine.key_rate_limit IS NOT NULL
                        )
                ) IS NOT NULL
                AND (
                    SELECT plain_entry.id
                    FROM task_outbox AS plain_entry
                    WHERE plain_entry.queue = queues.queue AND plain_entry.partition_key IS NULL
                    LIMIT :param_3
                    OFFSET :param_4
                ) IS NOT NULL
        )
) AS others
