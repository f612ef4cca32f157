SELECT page.id, task_executions.created_at
FROM (
    SELECT looked.id AS id
    FROM (
        SELECT task_leases.task_execution_id AS id, task_leases.queue AS queue
        FROM task_leases
        WHERE
            task_leases.task_execution_id >= %(from_id)s::UUID
            AND task_leases.task_execution_id < %(to_id)s::UUID
            AND (%(queue)s::VARCHAR IS NULL OR task_leases.queue = %(queue)s::VARCHAR)
            AND (%(worker)s::UUID IS NULL OR task_leases.worker_id = %(worker)s::UUID)
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
        AND (
            %(partition_key)s::VARCHAR IS NULL
                OR (
                    SELECT execution.partition_key
                    FROM task_executions AS execution
                    WHERE execution.id = looked.id
                ) = %(partition_key)s::VARCHAR
        )
        AND (
            %(topic)s::VARCHAR IS NULL
                OR (
                    SELECT execution.topic
                    FROM task_executions AS execution
                    WHERE execution.id = looked.id
                ) = %(topic)s::VARCHAR
        )
    ORDER BY looked.id
    LIMIT %(limit)s::BIGINT
) AS page
JOIN task_executions ON task_executions.id = page.id
ORDER BY page.id
