SELECT count(*) AS tasks
FROM (
    SELECT 1 AS one
    FROM (
        SELECT
            anon_1.id AS id,
            anon_1.queue AS queue,
            anon_1.partition_key AS partition_key,
            anon_1.topic AS topic
        FROM (
            SELECT
                task_outbox.task_execution_id AS id,
                task_outbox.queue AS queue,
                task_outbox.partition_key AS partition_key,
                task_outbox.topic AS topic
            FROM task_outbox
            WHERE
                task_outbox.queue = %(queue)s::VARCHAR
                AND task_outbox.partition_key IS NULL
                AND task_outbox.task_execution_id >= %(from_id)s::UUID
                AND task_outbox.task_execution_id < %(to_id)s::UUID
            LIMIT %(scan)s::BIGINT
        ) AS anon_1
        UNION ALL
        SELECT
            anon_2.id AS id,
            anon_2.queue AS queue,
            anon_2.partition_key AS partition_key,
            anon_2.topic AS topic
        FROM (
            SELECT
                task_outbox.task_execution_id AS id,
                task_outbox.queue AS queue,
                task_outbox.partition_key AS partition_key,
                task_outbox.topic AS topic
            FROM task_outbox
            WHERE
                task_outbox.queue = %(queue)s::VARCHAR
                AND task_outbox.partition_key IS NOT NULL
                AND task_outbox.task_execution_id >= %(from_id)s::UUID
                AND task_outbox.task_execution_id < %(to_id)s::UUID
            LIMIT %(scan)s::BIGINT
        ) AS anon_2
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
    LIMIT %(limit)s::BIGINT
) AS "some"
