UPDATE queue_settings
SET rate_full_at=%(full_at)s::TIMESTAMP WITH TIME ZONE
WHERE queue_settings.queue = %(queue)s::VARCHAR
