SELECT
    queue_settings.queue AS queue,
    queue_settings.paused_at AS paused_at,
    queue_settings.pause_reason AS pause_reason,
    queue_settings.concurrency_limit AS concurrency_limit,
    queue_settings.rate_limit AS rate_limit,
    queue_settings.rate_seconds AS rate_seconds,
    queue_settings.rate_full_at AS rate_full_at,
    queue_settings.key_concurrency AS key_concurrency,
    queue_settings.key_rate_limit AS key_rate_limit,
    CASE
        WHEN (queue_settings.concurrency_limit IS NOT NULL) THEN (
            SELECT count(*) AS count_1
            FROM task_leases
            WHERE task_leases.queue = queue_settings.queue
        )
    END AS running
FROM queue_settings
WHERE queue_settings.queue = any(array((SELECT page.queue FROM page)))
