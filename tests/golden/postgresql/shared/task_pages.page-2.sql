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
