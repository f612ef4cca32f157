SELECT looked.id AS id
FROM (
    SELECT task_leases.task_execution_id AS id, task_leases.queue AS queue
    FROM task_leases
    WHERE
        task_leases.task_execution_id >= :from_id
        AND task_leases.task_execution_id < :to_id
        AND (:queue IS NULL OR task_leases.queue = :queue)
        AND (:worker IS NULL OR task_leases.worker_id = :worker)
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
    AND (
        :partition_key IS NULL
            OR (
                SELECT execution.partition_key
                FROM task_executions AS execution
                WHERE execution.id = looked.id
            ) = :partition_key
    )
    AND (
        :topic IS NULL
            OR (
                SELECT execution.topic
                FROM task_executions AS execution
                WHERE execution.id = looked.id
            ) = :topic
    )
    AND (
        :exception IS NULL
            OR substr(
                (
                    SELECT execution.last_error
                    FROM task_executions AS execution
                    WHERE execution.id = looked.id
                ) || ':',
                1,
                length(:exception) + 1
            ) = (:exception || ':')
            OR substr(
                (
                    SELECT execution.last_error
                    FROM task_executions AS execution
                    WHERE execution.id = looked.id
                ) || ':',
                1,
                length(:exception_end) + 1
            ) = (:exception_end || ':')
    )
    AND (
        :argument_first IS NULL
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
                    :argument_first,
                    ''
                ),
                :argument_last,
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
LIMIT :limit
OFFSET :param_1
