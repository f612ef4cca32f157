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
    :queue AS anon_1,
    CASE WHEN :paused THEN :now ELSE NULL END AS anon_2,
    :pause_reason AS anon_3,
    :concurrency_limit AS anon_4,
    :rate_limit AS anon_5,
    :rate_seconds AS anon_6,
    :key_concurrency AS anon_7,
    :key_rate_limit AS anon_8,
    :key_rate_seconds AS anon_9,
    :fair AS anon_10,
    :now AS anon_11
ON CONFLICT (queue) DO UPDATE SET paused_at = CASE
    WHEN (:sets_paused = 1 AND NOT (excluded.paused_at IS NOT NULL AND queue_settings.paused_at IS NOT NULL)) THEN excluded.paused_at
    ELSE queue_settings.paused_at
END, pause_reason = CASE
    WHEN (:sets_paused = 1 AND NOT (excluded.paused_at IS NOT NULL AND queue_settings.paused_at IS NOT NULL)) THEN excluded.pause_reason
    ELSE queue_settings.pause_reason
END, concurrency_limit = CASE
    WHEN :sets_concurrency THEN excluded.concurrency_limit
    ELSE queue_settings.concurrency_limit
END, rate_limit = CASE
    WHEN :sets_rate THEN excluded.rate_limit
    ELSE queue_settings.rate_limit
END, rate_seconds = CASE
    WHEN :sets_rate THEN excluded.rate_seconds
    ELSE queue_settings.rate_seconds
END, rate_full_at = CASE
    WHEN (
        :sets_rate = 1
            AND (
                queue_settings.rate_limit IS NOT excluded.rate_limit
                    OR queue_settings.rate_seconds IS NOT excluded.rate_seconds
            )
    ) THEN NULL
    ELSE queue_settings.rate_full_at
END, key_concurrency = CASE
    WHEN :sets_concurrency_per_key THEN excluded.key_concurrency
    ELSE queue_settings.key_concurrency
END, key_rate_limit = CASE
    WHEN :sets_rate_per_key THEN excluded.key_rate_limit
    ELSE queue_settings.key_rate_limit
END, key_rate_seconds = CASE
    WHEN :sets_rate_per_key THEN excluded.key_rate_seconds
    ELSE queue_settings.key_rate_seconds
END, fair = CASE
    WHEN :sets_fair THEN excluded.fair
    ELSE queue_settings.fair
END, updated_at = :now
RETURNING
    queue,
    paused_at,
    pause_reason,
    concurrency_limit,
    rate_limit,
    rate_seconds,
    rate_full_at,
    key_concurrency,
    key_rate_limit,
    key_rate_seconds,
    fair,
    updated_at
