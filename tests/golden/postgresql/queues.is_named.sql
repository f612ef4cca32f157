SELECT 1 AS found
WHERE
    (
        EXISTS (
            SELECT queue_settings.queue
            FROM queue_settings
            WHERE queue_settings.queue = %(queue)s::VARCHAR
        )
    )
    OR (
        EXISTS (
            SELECT task_outbox.queue
            FROM task_outbox
            WHERE task_outbox.queue = %(queue)s::VARCHAR
        )
    )
    OR (
        EXISTS (
            SELECT task_leases.queue
            FROM task_leases
            WHERE task_leases.queue = %(queue)s::VARCHAR
        )
    )
    OR (
        EXISTS (
            SELECT dead_letters.queue
            FROM dead_letters
            WHERE dead_letters.queue = %(queue)s::VARCHAR
        )
    )
    OR (
        EXISTS (
            SELECT task_subscriptions.queue
            FROM task_subscriptions
            WHERE task_subscriptions.queue = %(queue)s::VARCHAR
        )
    )
    OR (
        EXISTS (
            SELECT newest.queue
            FROM (
                SELECT task_executions.queue AS queue
                FROM task_executions
                ORDER BY task_executions.id DESC
                LIMIT %(most)s::BIGINT
            ) AS newest
            WHERE newest.queue = %(queue)s::VARCHAR
        )
    )
    OR (
        EXISTS (
            SELECT task_schedules.queue
            FROM task_schedules
            WHERE task_schedules.queue = %(queue)s::VARCHAR
        )
    )
    OR (
        EXISTS (
            SELECT queue_samples.queue
            FROM queue_samples
            WHERE queue_samples.queue = %(queue)s::VARCHAR
        )
    )
    OR (
        EXISTS (
            SELECT task_metrics.queue
            FROM task_metrics
            WHERE task_metrics.queue = %(queue)s::VARCHAR
        )
    )
