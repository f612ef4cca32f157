DELETE FROM queue_settings
WHERE queue_settings.queue = :queue
RETURNING queue, paused_at, concurrency_limit, rate_limit, rate_seconds, rate_full_at, fair, updated_at
