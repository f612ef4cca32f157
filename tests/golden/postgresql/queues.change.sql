WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
INSERT INTO queue_settings (
    queue,
    paused_at,
    pause_reason,
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
    %(pause_reason)s::VARCHAR AS anon_3,
    %(concurrency_limit)s::INTEGER AS anon_4,
    %(rate_limit)s::INTEGER AS anon_5,
    %(rate_seconds)s AS anon_6,
    %(key_concurrency)s::INTEGER AS anon_7,
    %(key_rate_limit)s::INTEGER AS anon_8,
    %(key_rate_seconds)s AS anon_9,
    %(fair)s AS anon_10,
    (SELECT clock.now FROM clock) AS anon_11
ON CONFLICT (queue) DO UPDATE SET paused_at = CASE
    WHEN (%(sets_paused)s AND NOT (excluded.paused_at IS NOT NULL AND queue_settings.paused_at IS NOT NULL)) THEN excluded.paused_at
    ELSE queue_settings.paused_at
END, pause_reason = CASE
    WHEN (%(sets_paused)s AND NOT (excluded.paused_at IS NOT NULL AND queue_settings.paused_at IS NOT NULL)) THEN excluded.pause_reason
    ELSE queue_settings.pause_reason
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
    queue_settings.pause_reason,
    queue_settings.concurrency_limit,
    queue_settings.rate_limit,
    queue_settings.rate_seconds,
    queue_settings.rate_full_at,
    queue_settings.key_concurrency,
    queue_settings.key_rate_limit,
    queue_settings.key_rate_seconds,
    queue_settings.fair,
    queue_settings.updated_at
