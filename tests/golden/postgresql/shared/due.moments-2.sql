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
        keyed_later.queue = keyed_queues.queue
        AND keyed_later.partition_key IS NOT NULL
        AND keyed_later.available_at > (SELECT clock.now FROM clock)
    ORDER BY keyed_later.available_at, keyed_later.id
    LIMIT %(param_2)s::INTEGER
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
        queue_settings.rate_full_at <= (SELECT clock.now FROM clock) + queue_settings.rate_seconds * 2 * interval '1 second'
    ) THEN queue_settings.rate_full_at + (
        -(
            queue_settings.rate_seconds - queue_settings.rate_seconds / CAST(
                queue_settings.rate_limit AS NUMERIC
            )
        )
    ) * interval '1 second'
END AS available_at
FROM queue_settings
WHERE
    CASE
        WHEN (
            queue_settings.rate_full_at <= (SELECT clock.now FROM clock) + queue_settings.rate_seconds * 2 * interval '1 second'
        ) THEN queue_settings.rate_full_at + (
            -(
                queue_settings.rate_seconds - queue_settings.rate_seconds / CAST(
                    queue_settings.rate_limit AS NUMERIC
                )
            )
        ) * interval '1 second'
    END > (SELECT clock.now FROM clock)
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
SELECT coalesce(
    (/* due.key_rates-4 */),
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
