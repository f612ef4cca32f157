DELETE FROM queue_settings
WHERE queue_settings.queue = :queue
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
