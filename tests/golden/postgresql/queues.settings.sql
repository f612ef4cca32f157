SELECT
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
FROM queue_settings
ORDER BY queue_settings.queue
