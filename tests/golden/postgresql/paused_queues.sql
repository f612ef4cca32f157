SELECT queue_settings.queue
FROM queue_settings
WHERE queue_settings.paused_at IS NOT NULL
