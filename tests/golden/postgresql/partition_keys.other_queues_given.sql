WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    )
SELECT
    queues.queue,
    (
        SELECT keyed_due.id
        FROM task_outbox AS keyed_due
        WHERE
            keyed_due.queue = queues.queue
            AND keyed_due.partition_key IS NOT NULL
            AND keyed_due.available_at <= (SELECT clock.now FROM clock)
        ORDER BY keyed_due.available_at
        LIMIT %(param_1)s::INTEGER
    ) IS NOT NULL AS keyed,
    (
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
    ) IS NOT NULL AS limited,
    coalesce(
        (
            SELECT settings.fair
            FROM queue_settings AS settings
            WHERE settings.queue = queues.queue
        ),
        true
    ) AS fair
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
                AND keyed_due.available_at <= (SELECT clock.now FROM clock)
            ORDER BY keyed_due.available_at
            LIMIT %(param_1)s::INTEGER
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
    )
