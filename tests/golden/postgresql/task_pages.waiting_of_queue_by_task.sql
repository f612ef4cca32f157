WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT "some".queue, "some".task_name, count(*) AS number
FROM (
    SELECT
        looked.queue AS queue,
        (
            SELECT execution.task_name
            FROM task_executions AS execution
            WHERE execution.id = looked.id
        ) AS task_name
    FROM (/* task_pages.looked-1: anon_1, anon_2 */) AS looked
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
        AND (
            %(waiting)s::VARCHAR IS NULL
                OR %(waiting)s::VARCHAR = 'later'
                AND looked.available_at > (SELECT clock.now FROM clock)
                OR CASE
                    WHEN (looked.available_at <= (SELECT clock.now FROM clock)) THEN 'due'
                    WHEN (
                        (
                            SELECT execution.retry_at
                            FROM task_executions AS execution
                            WHERE execution.id = looked.id
                        ) IS NULL
                    ) THEN 'delayed'
                    ELSE 'retrying'
                END = %(waiting)s::VARCHAR
        )
    LIMIT %(limit)s::BIGINT
) AS "some"
GROUP BY "some".queue, "some".task_name
ORDER BY count(*) DESC, "some".queue, "some".task_name
