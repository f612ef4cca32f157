SELECT count(*) AS tasks
FROM (
    SELECT parts.id AS id
    FROM (
        SELECT task_outbox.id AS id
        FROM task_outbox
        WHERE
            task_outbox.queue = :queue
            AND task_outbox.available_at <= :now
            AND task_outbox.priority >= :priority
            AND (
                task_outbox.priority > :priority
                    OR task_outbox.available_at < :available_at
                    OR task_outbox.available_at = :available_at
                    AND task_outbox.id < :entry_id
            )
            AND task_outbox.partition_key IS NULL
        UNION ALL
        SELECT task_outbox.id AS id
        FROM task_outbox
        WHERE
            task_outbox.queue = :queue
            AND task_outbox.available_at <= :now
            AND task_outbox.priority >= :priority
            AND (
                task_outbox.priority > :priority
                    OR task_outbox.available_at < :available_at
                    OR task_outbox.available_at = :available_at
                    AND task_outbox.id < :entry_id
            )
            AND task_outbox.partition_key IS NOT NULL
    ) AS parts
    LIMIT 1001
    OFFSET :param_1
) AS counted
