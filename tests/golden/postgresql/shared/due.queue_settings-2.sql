SELECT mine.queue
FROM queue_settings AS mine
WHERE
    mine.queue = keyed_queues.queue
    AND (
        mine.paused_at IS NOT NULL
            OR mine.key_concurrency IS NOT NULL
            OR mine.key_rate_limit IS NOT NULL
            OR mine.concurrency_limit IS NOT NULL
            AND mine.concurrency_limit <= (
                SELECT count(*) AS count_1
                FROM task_leases AS lease
                WHERE lease.queue = mine.queue
            )
            OR CASE
                WHEN (
                    mine.rate_full_at <= (SELECT clock.now FROM clock) + mine.rate_seconds * 2 * interval '1 second'
                ) THEN mine.rate_full_at + (
                    -(mine.rate_seconds - mine.rate_seconds / CAST(mine.rate_limit AS NUMERIC))
                ) * interval '1 second'
            END > (SELECT clock.now FROM clock)
    )
