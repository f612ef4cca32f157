SELECT queue_settings.queue AS id
FROM queue_settings
WHERE (queue_settings.rate_limit IS NULL) != (queue_settings.rate_seconds IS NULL)
