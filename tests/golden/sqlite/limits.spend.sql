UPDATE queue_settings
SET rate_full_at=:full_at
WHERE queue_settings.queue = :queue
