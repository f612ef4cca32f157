WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT count(*) AS tasks
FROM (
    SELECT parts.id AS id
    FROM (
        SELECT task_outbox.id AS id
        FROM task_outbox
        WHERE
            task_outbox.queue = %(queue)s::VARCHAR
            AND task_outbox.available_at <= (SELECT clock.now FROM clock)
            AND task_outbox.priority >= %(priority)s::SMALLINT
            AND (
                task_outbox.priority > %(priority)s::SMALLINT
                    OR task_outbox.available_at < %(available_at)s::TIMESTAMP WITH TIME ZONE
                    OR task_outbox.available_at = %(available_at)s::TIMESTAMP WITH TIME ZONE
                    AND task_outbox.id < %(entry_id)s::BIGINT
            )
            AND task_outbox.partition_key IS NULL
        UNION ALL
        SELECT task_outbox.id AS id
        FROM task_outbox
        WHERE
            task_outbox.queue = %(queue)s::VARCHAR
            AND task_outbox.available_at <= (SELECT clock.now FROM clock)
            AND task_outbox.priority >= %(priority)s::SMALLINT
            AND (
                task_outbox.priority > %(priority)s::SMALLINT
                    OR task_outbox.available_at < %(available_at)s::TIMESTAMP WITH TIME ZONE
                    OR task_outbox.available_at = %(available_at)s::TIMESTAMP WITH TIME ZONE
                    AND task_outbox.id < %(entry_id)s::BIGINT
            )
            AND task_outbox.partition_key IS NOT NULL
    ) AS parts
    LIMIT 1001
) AS counted
