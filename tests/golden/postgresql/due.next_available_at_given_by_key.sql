WITH RECURSIVE
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    ),
    waiting_pairs(queue, priority) AS (
        SELECT
            queues.queue AS queue,
            (
                SELECT entry.priority
                FROM task_outbox AS entry
                WHERE entry.queue = queues.queue AND entry.partition_key IS NULL
                ORDER BY entry.priority DESC
                LIMIT %(param_2)s::INTEGER
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
                LIMIT %(param_3)s::INTEGER
            ) AS anon_1
        FROM waiting_pairs
        WHERE waiting_pairs.priority IS NOT NULL
    ),
    limited AS MATERIALIZED (
        SELECT
            queue_settings.queue AS queue,
            coalesce(queue_settings.key_concurrency, 1) AS key_concurrency,
            (SELECT clock.now FROM clock) + (
                queue_settings.key_rate_seconds - queue_settings.key_rate_seconds / CAST(
                    queue_settings.key_rate_limit AS NUMERIC
                )
            ) * interval '1 second' AS blocked_after,
            (SELECT clock.now FROM clock) + queue_settings.key_rate_seconds * 2 * interval '1 second' AS blocked_until,
            queue_settings.key_rate_seconds - queue_settings.key_rate_seconds / CAST(
                queue_settings.key_rate_limit AS NUMERIC
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
                queue_settings.rate_full_at + (
                    -(
                        queue_settings.rate_seconds - queue_settings.rate_seconds / CAST(
                            queue_settings.rate_limit AS NUMERIC
                        )
                    )
                ) * interval '1 second' IS NULL
                    OR queue_settings.rate_full_at + (
                        -(
                            queue_settings.rate_seconds - queue_settings.rate_seconds / CAST(
                                queue_settings.rate_limit AS NUMERIC
                            )
                        )
                    ) * interval '1 second' <= (SELECT clock.now FROM clock)
            )
            AND (
                EXISTS (
                    SELECT queues.queue
                    FROM queues
                    WHERE queue_settings.queue = queues.queue
                )
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
            AND entry_later.available_at > (SELECT clock.now FROM clock)
        ORDER BY entry_later.available_at, entry_later.id
        LIMIT %(param_1)s::INTEGER
    ) AS available_at
    FROM waiting_pairs
    UNION ALL
    SELECT (
        SELECT keyed_later.available_at
        FROM task_outbox AS keyed_later
        WHERE
            keyed_later.queue = queues.queue
            AND keyed_later.partition_key IS NOT NULL
            AND keyed_later.available_at > (SELECT clock.now FROM clock)
        ORDER BY keyed_later.available_at, keyed_later.id
        LIMIT %(param_4)s::INTEGER
    ) AS available_at
    FROM queues
    WHERE (
        SELECT mine.queue
        FROM queue_settings AS mine
        WHERE mine.queue = queues.queue AND mine.paused_at IS NOT NULL
    ) IS NULL
    UNION ALL
    SELECT queue_settings.rate_full_at + (
        -(
            queue_settings.rate_seconds - queue_settings.rate_seconds / CAST(
                queue_settings.rate_limit AS NUMERIC
            )
        )
    ) * interval '1 second' AS available_at
    FROM queue_settings
    WHERE
        queue_settings.rate_full_at + (
            -(
                queue_settings.rate_seconds - queue_settings.rate_seconds / CAST(
                    queue_settings.rate_limit AS NUMERIC
                )
            )
        ) * interval '1 second' > (SELECT clock.now FROM clock)
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
    UNION ALL
    SELECT coalesce(
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
            ) AS spent
            WHERE (
                SELECT entry_of_key.id
                FROM task_outbox AS entry_of_key
                WHERE entry_of_key.queue = spent.queue AND entry_of_key.partition_key = spent.partition_key
                LIMIT 1
            ) IS NOT NULL
            ORDER BY spent.full_at
            LIMIT 1
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
    ) + (-limited.room) * interval '1 second' AS available_at
    FROM limited
) AS moments
