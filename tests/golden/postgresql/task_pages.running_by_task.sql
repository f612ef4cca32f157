SELECT "some".queue, "some".task_name, count(*) AS number
FROM (
    SELECT
        looked.queue AS queue,
        (
            SELECT execution.task_name
            FROM task_executions AS execution
            WHERE execution.id = looked.id
        ) AS task_name
    FROM (
        SELECT task_leases.task_execution_id AS id, task_leases.queue AS queue
        FROM task_leases
        WHERE
            task_leases.task_execution_id >= %(from_id)s::UUID
            AND task_leases.task_execution_id < %(to_id)s::UUID
            AND (%(queue)s::VARCHAR IS NULL OR task_leases.queue = %(queue)s::VARCHAR)
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
        AND (
            %(head)s::BIGINT IS NULL
                OR (/* task_pages.execution_events-1 */) IS NULL
                AND (NOT %(only_ready)s OR (/* task_pages.execution_events-2 */) IS NULL)
                AND (
                    NOT %(only_running)s
                        OR (
                            SELECT execution_events.sequence_num
                            FROM execution_events
                            WHERE
                                execution_events.task_execution_id = looked.id
                                AND execution_events.event_type = 'task_claimed'
                                AND (
                                    execution_events.sequence_num > %(head)s::BIGINT
                                        OR (
                                            CAST(CAST(execution_events.xact_id AS TEXT) AS BIGINT) <@ CAST(
                                                %(open)s::VARCHAR AS INT8MULTIRANGE
                                            )
                                        )
                                )
                            LIMIT 1
                        ) IS NULL
                )
        )
        AND (
            %(asked_too)s
                OR (
                    SELECT execution.cancel_requested_at
                    FROM task_executions AS execution
                    WHERE execution.id = looked.id
                ) IS NULL
        )
    LIMIT %(limit)s::BIGINT
) AS "some"
GROUP BY "some".queue, "some".task_name
ORDER BY count(*) DESC, "some".queue, "some".task_name
