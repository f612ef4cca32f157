WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
INSERT INTO queue_settings (queue, paused_at, concurrency_limit, rate_limit, rate_seconds, fair, updated_at)
SELECT
    %(queue)s::VARCHAR AS anon_1,
    CASE
        WHEN %(paused)s THEN (SELECT clock.now FROM clock)
        ELSE NULL
    END AS anon_2,
    %(concurrency_limit)s::INTEGER AS anon_3,
    %(rate_limit)s::INTEGER AS anon_4,
    %(rate_seconds)s AS anon_5,
    %(fair)s AS anon_6,
    (SELECT clock.now FROM clock) AS anon_7
ON CONFLICT (queue) DO UPDATE SET paused_at = CASE
    WHEN %(sets_paused)s THEN CASE
    WHEN (excluded.paused_at IS NULL) THEN NULL
    ELSE coalesce(queue_settings.paused_at, excluded.paused_at)
END
    ELSE queue_settings.paused_at
END, concurrency_limit = CASE
    WHEN %(sets_concurrency)s THEN excluded.concurrency_limit
    ELSE queue_settings.concurrency_limit
END, rate_limit = CASE
    WHEN %(sets_rate)s THEN excluded.rate_limit
    ELSE queue_settings.rate_limit
END, rate_seconds = CASE
    WHEN %(sets_rate)s THEN excluded.rate_seconds
    ELSE queue_settings.rate_seconds
END, rate_full_at = CASE
    WHEN (
        %(sets_rate)s
            AND (
                queue_settings.rate_limit IS DISTINCT FROM excluded.rate_limit
                    OR queue_settings.rate_seconds IS DISTINCT FROM excluded.rate_seconds
            )
    ) THEN NULL
    ELSE queue_settings.rate_full_at
END, fair = CASE
    WHEN %(sets_fair)s THEN excluded.fair
    ELSE queue_settings.fair
END, updated_at = (SELECT clock.now FROM clock)
RETURNING
    queue_settings.queue,
    queue_settings.paused_at,
    queue_settings.concurrency_limit,
    queue_settings.rate_limit,
    queue_settings.rate_seconds,
    queue_settings.rate_full_at,
    queue_settings.fair,
    queue_settings.updated_at
