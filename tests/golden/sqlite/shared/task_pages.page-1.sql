SELECT looked.id AS id
FROM (
    SELECT
        task_executions.id AS id,
        task_executions.status AS status,
        task_executions.queue AS queue,
        task_executions.task_name AS task_name,
        task_executions.partition_key AS partition_key,
        task_executions.topic AS topic,
        task_executions.last_error AS last_error,
        task_executions.args AS args
    FROM task_executions
    WHERE task_executions.id >= :from_id AND task_executions.id < :to_id
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
        :exception IS NULL
            OR substr(looked.last_error || ':', 1, length(:exception) + 1) = (:exception || ':')
            OR substr(looked.last_error || ':', 1, length(:exception_end) + 1) = (:exception_end || ':')
    )
    AND (
        :argument_first IS NULL
            OR replace(replace(replace(looked.args, ' ', ''), :argument_first, ''), :argument_last, '') != replace(
                looked.args,
                ' ',
                ''
            )
    )
ORDER BY looked.id DESC
LIMIT :limit
OFFSET :param_2
