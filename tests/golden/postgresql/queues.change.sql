WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
INSERT INTO queue_settings (
    queue,
    paused_at,
    concurrency_limit,
    rate_limit,
    rate_seconds,
    key_concurrency,
    key_rate_limit,
    key_rate_seconds,
    fair,
    updated_at
)
SELECT
    %(queue)s::VARCHAR AS anon_1,
    CASE
        WHEN %(paused)s THEN (SELECT clock.now FROM clock)
        ELSE NULL
    END AS anon_2,
    %(concurrency_limit)s::INTEGER AS anon_3,
    %(rate_limit)s::INTEGER AS anon_4,
    %(rate_seconds)s AS anon_5,
    %(key_concurrency)s::INTEGER AS anon_6,
    %(key_rate_limit)s::INTEGER AS anon_7,
    %(key_rate_seconds)s AS anon_8,
    %(fair)s AS anon_9,
    (SELECT clock.now FROM clock) AS anon_10
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
END, key_concurrency = CASE
    WHEN %(sets_concurrency_per_key)s THEN excluded.key_concurrency
    ELSE queue_settings.key_concurrency
END, key_rate_limit = CASE
    WHEN %(sets_rate_per_key)s THEN excluded.key_rate_limit
    ELSE queue_settings.key_rate_limit
END, key_rate_seconds = CASE
    WHEN %(sets_rate_per_key)s THEN excluded.key_rate_seconds
    ELSE queue_settings.key_rate_seconds
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
    queue_settings.key_concurrency,
    queue_settings.key_rate_limit,
    queue_settings.key_rate_seconds,
    queue_settings.fair,
    queue_settings.updated_at
