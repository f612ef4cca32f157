SELECT count(*) AS tasks
FROM (
    SELECT 1 AS one
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
        LIMIT %(scan)s::BIGINT
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
    LIMIT %(limit)s::BIGINT
) AS "some"
