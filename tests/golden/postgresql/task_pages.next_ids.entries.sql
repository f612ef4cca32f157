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
        WHERE
            task_outbox.task_execution_id >= %(from_id)s::UUID
            AND task_outbox.task_execution_id < %(to_id)s::UUID
    ) AS looked
    WHERE
        (%(queue)s::VARCHAR IS NULL OR looked.queue = %(queue)s::VARCHAR)
        AND (
            %(task_name)s::VARCHAR IS NULL
                OR (
                    SELECT execution.task_name
                    FROM task_executions AS execution
                    WHERE execution.id = looked.id
                ) = %(task_name)s::VARCHAR
        )
        AND (%(partition_key)s::VARCHAR IS NULL OR looked.partition_key = %(partition_key)s::VARCHAR)
        AND (%(topic)s::VARCHAR IS NULL OR looked.topic = %(topic)s::VARCHAR)
        AND (
            %(worker)s::UUID IS NULL
                OR (
                    SELECT execution_events.sequence_num
                    FROM execution_events
                    WHERE
                        execution_events.task_execution_id = looked.id
                        AND execution_events.event_type = 'task_claimed'
                        AND execution_events.worker_id = %(worker)s::UUID
                    LIMIT 1
                ) IS NOT NULL
        )
    ORDER BY looked.id
    LIMIT %(limit)s::BIGINT
) AS page
JOIN task_executions ON task_executions.id = page.id
ORDER BY page.id
