SELECT page.id, task_executions.created_at
FROM (
    SELECT looked.id AS id
    FROM (
        SELECT
            task_outbox.task_execution_id AS id,
            task_outbox.queue AS queue,
            task_outbox.partition_key AS partition_key,
            task_outbox.topic AS topic
        FROM task_outbox
        WHERE task_outbox.task_execution_id >= :from_id AND task_outbox.task_execution_id < :to_id
    ) AS looked
    WHERE
        (:queue IS NULL OR looked.queue = :queue)
        AND (
            :task_name IS NULL
                OR (
                    SELECT execution.task_name
                    FROM task_executions AS execution
                    WHERE execution.id = looked.id
                ) = :task_name
        )
        AND (:partition_key IS NULL OR looked.partition_key = :partition_key)
        AND (:topic IS NULL OR looked.topic = :topic)
        AND (
            :worker IS NULL
                OR (
                    SELECT execution_events.sequence_num
                    FROM execution_events
                    WHERE
                        execution_events.task_execution_id = looked.id
                        AND execution_events.event_type = 'task_claimed'
                        AND execution_events.worker_id = :worker
                    LIMIT 1
                    OFFSET :param_1
                ) IS NOT NULL
        )
    ORDER BY looked.id
    LIMIT :limit
    OFFSET :param_2
) AS page
JOIN task_executions ON task_executions.id = page.id
ORDER BY page.id
