SELECT
    key_limits.queue,
    key_limits.concurrency_limit,
    key_limits.key_concurrency,
    key_limits.key_rate_limit,
    key_limits.key_rate_seconds
FROM key_limits
WHERE key_limits.queue = :queue
