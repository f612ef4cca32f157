SELECT incomplete.id
FROM (
    SELECT key_limits.queue AS id
    FROM key_limits
    WHERE (key_limits.key_rate_limit IS NULL) != (key_limits.key_rate_seconds IS NULL)
    UNION
    SELECT queue_settings.queue AS queue
    FROM queue_settings
    WHERE
        queue_settings.concurrency_limit = 0
        AND NOT (
            EXISTS (
                SELECT key_limits.queue
                FROM key_limits
                WHERE key_limits.queue = queue_settings.queue
            )
        )
) AS incomplete
