SELECT looked.id AS id
FROM (
    SELECT
        dead_letters.task_execution_id AS id,
        dead_letters.queue AS queue,
        dead_letters.task_name AS task_name,
        dead_letters.partition_key AS partition_key,
        dead_letters.topic AS topic
    FROM dead_letters
    WHERE
        dead_letters.task_execution_id >= %(from_id)s::UUID
        AND dead_letters.task_execution_id < %(to_id)s::UUID
) AS looked
WHERE
    (%(queue)s::VARCHAR IS NULL OR looked.queue = %(queue)s::VARCHAR)
    AND (%(task_name)s::VARCHAR IS NULL OR looked.task_name = %(task_name)s::VARCHAR)
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
    AND (
        %(exception)s::VARCHAR IS NULL
            OR substr(
                (
                    SELECT execution.last_error
                    FROM task_executions AS execution
                    WHERE execution.id = looked.id
                ) || ':',
                1,
                length(%(exception)s::VARCHAR) + 1
            ) = (%(exception)s::VARCHAR || ':')
            OR substr(
                (
                    SELECT execution.last_error
                    FROM task_executions AS execution
                    WHERE execution.id = looked.id
                ) || ':',
                1,
                length(%(exception_end)s::VARCHAR) + 1
            ) = (%(exception_end)s::VARCHAR || ':')
    )
    AND (
        %(argument_first)s::VARCHAR IS NULL
            OR replace(
                replace(
                    replace(
                        (
                            SELECT execution.args
                            FROM task_executions AS execution
                            WHERE execution.id = looked.id
                        ),
                        ' ',
                        ''
                    ),
                    %(argument_first)s::VARCHAR,
                    ''
                ),
                %(argument_last)s::VARCHAR,
                ''
            ) != replace(
                (
                    SELECT execution.args
                    FROM task_executions AS execution
                    WHERE execution.id = looked.id
                ),
                ' ',
                ''
            )
    )
ORDER BY looked.id DESC
LIMIT %(limit)s::BIGINT
