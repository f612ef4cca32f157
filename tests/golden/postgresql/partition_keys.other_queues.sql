WITH RECURSIVE
    keyed_queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NOT NULL AND task_outbox.queue > %(after)s::VARCHAR
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_1
            FROM task_outbox AS entry
            WHERE entry.queue > keyed_queues.queue AND entry.partition_key IS NOT NULL
        ) AS anon_1
        FROM keyed_queues
        WHERE keyed_queues.queue IS NOT NULL
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
    ),
    limited_queues(queue) AS (
        SELECT CASE
            WHEN (bounded.upto IS NULL) THEN (
                SELECT min(entry.queue) AS min_2
                FROM task_outbox AS entry
                WHERE entry.queue >= bounded.queue AND entry.partition_key IS NULL
            )
            ELSE coalesce(
                (
                    SELECT min(entry.queue) AS min_3
                    FROM task_outbox AS entry
                    WHERE
                        entry.queue >= bounded.queue
                        AND entry.queue < bounded.upto
                        AND entry.partition_key IS NULL
                ),
                bounded.upto
            )
        END AS queue
        FROM (
            SELECT
                next_limited.queue AS queue,
                (
                    SELECT min(floors.queue) AS min_4
                    FROM floors
                    WHERE floors.queue >= next_limited.queue
                ) AS upto
            FROM (
                SELECT (
                    SELECT min(settings.queue) AS min_5
                    FROM queue_settings AS settings
                    WHERE
                        settings.queue > %(after)s::VARCHAR
                        AND (
                            settings.concurrency_limit IS NOT NULL
                                OR settings.rate_limit IS NOT NULL
                                OR settings.key_concurrency IS NOT NULL
                                OR settings.key_rate_limit IS NOT NULL
                        )
                ) AS queue
            ) AS next_limited
        ) AS bounded
        UNION ALL
        SELECT (
            SELECT CASE
                WHEN (bounded.upto IS NULL) THEN (
                    SELECT min(entry.queue) AS min_6
                    FROM task_outbox AS entry
                    WHERE entry.queue >= bounded.queue AND entry.partition_key IS NULL
                )
                ELSE coalesce(
                    (
                        SELECT min(entry.queue) AS min_7
                        FROM task_outbox AS entry
                        WHERE
                            entry.queue >= bounded.queue
                            AND entry.queue < bounded.upto
                            AND entry.partition_key IS NULL
                    ),
                    bounded.upto
                )
            END AS queue
            FROM (
                SELECT
                    next_limited.queue AS queue,
                    (
                        SELECT min(floors.queue) AS min_8
                        FROM floors
                        WHERE floors.queue >= next_limited.queue
                    ) AS upto
                FROM (
                    SELECT (
                        SELECT min(settings.queue) AS min_9
                        FROM queue_settings AS settings
                        WHERE
                            settings.queue > limited_queues.queue
                            AND (
                                settings.concurrency_limit IS NOT NULL
                                    OR settings.rate_limit IS NOT NULL
                                    OR settings.key_concurrency IS NOT NULL
                                    OR settings.key_rate_limit IS NOT NULL
                            )
                    ) AS queue
                ) AS next_limited
            ) AS bounded
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
                    AND keyed_due.available_at <= (SELECT clock.now FROM clock)
                ORDER BY keyed_due.available_at
                LIMIT %(param_1)s::INTEGER
            ) IS NOT NULL
        LIMIT %(most)s::INTEGER
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
            AND (
                NOT (
                    EXISTS (
                        SELECT floor.queue
                        FROM floors AS floor
                        WHERE floor.queue = limited_queues.queue
                    )
                )
                    OR (
                        EXISTS (
                            SELECT floor.queue
                            FROM floors AS floor
                            WHERE
                                floor.queue = limited_queues.queue
                                AND (
                                    floor.priority < 32767
                                        AND floor.since IS NULL
                                        OR (
                                            SELECT entry.id
                                            FROM task_outbox AS entry
                                            WHERE
                                                entry.queue = limited_queues.queue
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
                                                entry.queue = limited_queues.queue
                                                AND entry.partition_key IS NULL
                                                AND entry.priority < floor.priority
                                                AND entry.priority > floor.below
                                            LIMIT %(param_3)s::INTEGER
                                        ) IS NOT NULL
                                )
                        )
                    )
            )
        LIMIT %(most)s::INTEGER
    ) AS first_limited
) AS others
ORDER BY others.queue
LIMIT %(most)s::INTEGER
