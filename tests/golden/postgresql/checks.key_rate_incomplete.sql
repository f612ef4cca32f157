SELECT queue_settings.queue AS id
FROM queue_settings
WHERE (queue_settings.key_rate_limit IS NULL) != (queue_settings.key_rate_seconds IS NULL)
