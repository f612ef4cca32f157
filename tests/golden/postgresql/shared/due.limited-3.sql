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
        CASE WHEN (
            queue_settings.rate_full_at <= (SELECT clock.now FROM clock) + queue_settings.rate_seconds * 2 * interval '1 second'
        ) THEN queue_settings.rate_full_at + (
            -(
                queue_settings.rate_seconds - queue_settings.rate_seconds / CAST(
                    queue_settings.rate_limit AS NUMERIC
                )
            )
        ) * interval '1 second' END IS NULL
            OR CASE
                WHEN (
                    queue_settings.rate_full_at <= (SELECT clock.now FROM clock) + queue_settings.rate_seconds * 2 * interval '1 second'
                ) THEN queue_settings.rate_full_at + (
                    -(
                        queue_settings.rate_seconds - queue_settings.rate_seconds / CAST(
                            queue_settings.rate_limit AS NUMERIC
                        )
                    )
                ) * interval '1 second'
            END <= (SELECT clock.now FROM clock)
    )
    AND (
        EXISTS (
            SELECT queues.queue
            FROM queues
            WHERE queue_settings.queue = queues.queue
        )
    )
