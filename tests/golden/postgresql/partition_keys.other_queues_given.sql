WITH
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    floors AS (
        SELECT
            batch.queue AS queue,
            batch.priority AS priority,
            batch.below AS below,
            batch.since AS since,
            batch.ordinal AS ordinal
        FROM unnest(
            %(floors_queue)s::TEXT[],
            %(floors_priority)s::SMALLINT[],
            %(floors_below)s::SMALLINT[],
            %(floors_since)s::TIMESTAMP WITH TIME ZONE[]
        ) WITH ORDINALITY AS batch(queue, priority, below, since, ordinal)
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
                AND CASE
                    WHEN (
                        EXISTS (SELECT floors.queue FROM floors WHERE floors.queue = queues.queue)
                    ) THEN NOT (
                        EXISTS (SELECT floor.queue FROM floors AS floor WHERE floor.queue = queues.queue)
                    )
                OR (
                    EXISTS (
                        SELECT floor.queue
                        FROM floors AS floor
                        WHERE
                            floor.queue = queues.queue
                            AND (
                                floor.priority < 32767
                                    AND floor.since IS NULL
                                    OR (
                                        SELECT entry.id
                                        FROM task_outbox AS entry
                                        WHERE
                                            entry.queue = queues.queue
                                            AND entry.partition_key IS NULL
                                            AND entry.priority = floor.priority
                                            AND entry.available_at >= floor.since
                                            AND entry.available_at <= (SELECT clock.now FROM clock)
                                        LIMIT %(param_2)s::INTEGER
                                    ) IS NOT NULL
                                    OR (
                                        SELECT entry.id
                                        FROM task_outbox AS entry
                                        WHERE
                                            entry.queue = queues.queue
                                            AND entry.partition_key IS NULL
                                            AND entry.priority < floor.priority
                                            AND entry.priority > floor.below
                                        LIMIT %(param_3)s::INTEGER
                                    ) IS NOT NULL
                            )
                    )
                )
                    ELSE (
                        SELECT plain_entry.id
                        FROM task_outbox AS plain_entry
                        WHERE plain_entry.queue = queues.queue AND plain_entry.partition_key IS NULL
                        LIMIT %(param_4)s::INTEGER
                    ) IS NOT NULL
                END
        )
) AS others
