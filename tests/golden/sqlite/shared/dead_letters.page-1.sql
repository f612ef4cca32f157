SELECT
    dead_letters.task_execution_id AS task_execution_id,
    dead_letters.queue AS queue,
    dead_letters.task_name AS task_name,
    dead_letters.topic AS topic,
    dead_letters.partition_key AS partition_key,
    dead_letters.exception AS exception,
    dead_letters.failed_at AS failed_at,
    dead_letters.lost_key AS lost_key
FROM dead_letters
WHERE
    dead_letters.failed_at >= :since
    AND dead_letters.failed_at < :until
    AND (:queue IS NULL OR dead_letters.queue = :queue)
    AND (:task_name IS NULL OR dead_letters.task_name = :task_name)
    AND (:topic IS NULL OR dead_letters.topic = :topic)
    AND (:partition_key IS NULL OR dead_letters.partition_key = :partition_key)
    AND (
        :exception IS NULL
            OR dead_letters.exception = :exception
            OR substr(dead_letters.exception, length(dead_letters.exception) - length(:exception)) = :exception_end
    )
    AND (
        :head IS NULL
            OR (
                SELECT execution_events.sequence_num
                FROM execution_events
                WHERE
                    execution_events.task_execution_id = dead_letters.task_execution_id
                    AND execution_events.lease_token IS NULL
                    AND execution_events.event_type IN ('task_failed', 'task_abandoned')
                    AND execution_events.sequence_num > :head
                LIMIT 1
                OFFSET :param_1
            ) IS NULL
            AND (
                SELECT execution_events.sequence_num
                FROM execution_events
                WHERE
                    execution_events.task_execution_id = dead_letters.task_execution_id
                    AND execution_events.event_type != 'task_claimed'
                    AND execution_events.lease_token IS NOT NULL
                    AND execution_events.event_type IN ('task_failed', 'task_abandoned')
                    AND execution_events.sequence_num > :head
                LIMIT 1
                OFFSET :param_2
            ) IS NULL
    )
    AND (dead_letters.failed_at, dead_letters.task_execution_id) < (:after_failed_at, :after_id)
ORDER BY dead_letters.failed_at DESC, dead_letters.task_execution_id DESC
LIMIT :limit
OFFSET :param_3
