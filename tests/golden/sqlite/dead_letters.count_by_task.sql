SELECT some.queue, some.task_name, some.exception, count(*) AS number
FROM (
    SELECT
        dead_letters.queue AS queue,
        dead_letters.task_name AS task_name,
        dead_letters.exception AS exception
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
    LIMIT :limit
    OFFSET :param_3
) AS some
GROUP BY some.queue, some.task_name, some.exception
