SELECT looked.id AS id
FROM (
    SELECT
        mine.id AS id,
        mine.status AS status,
        mine.queue AS queue,
        mine.task_name AS task_name,
        mine.partition_key AS partition_key,
        mine.topic AS topic
    FROM mine
    WHERE mine.id >= :from_id AND mine.id < :to_id
) AS looked
WHERE
    (:queue IS NULL OR looked.queue = :queue)
    AND (:task_name IS NULL OR looked.task_name = :task_name)
    AND (:partition_key IS NULL OR looked.partition_key = :partition_key)
    AND (:topic IS NULL OR looked.topic = :topic)
    AND (:status IS NULL OR looked.status = :status)
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
    AND (
        :waiting IS NULL
            OR :waiting = 'later'
            AND (
                SELECT entry.available_at
                FROM task_outbox AS entry
                WHERE entry.task_execution_id = looked.id
            ) > :now
            OR CASE
                WHEN (
                    (
                        SELECT entry.available_at
                        FROM task_outbox AS entry
                        WHERE entry.task_execution_id = looked.id
                    ) <= :now
                ) THEN 'due'
                WHEN (
                    (
                        SELECT execution.retry_at
                        FROM task_executions AS execution
                        WHERE execution.id = looked.id
                    ) IS NULL
                ) THEN 'delayed'
                ELSE 'retrying'
            END = :waiting
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
OFFSET :param_2
