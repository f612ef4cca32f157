DELETE FROM queue_settings
WHERE
    queue_settings.queue = %(queue)s::VARCHAR
    AND queue_settings.paused_at IS NULL
    AND queue_settings.concurrency_limit IS NULL
    AND queue_settings.rate_limit IS NULL
    AND queue_settings.key_concurrency IS NULL
    AND queue_settings.key_rate_limit IS NULL
    AND queue_settings.fair
