SELECT dead_letters.task_execution_id AS id, dead_letters.failed_at
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
    AND (dead_letters.failed_at, dead_letters.task_execution_id) > (:after_failed_at, :after_id)
ORDER BY dead_letters.failed_at, dead_letters.task_execution_id
LIMIT :limit
OFFSET :param_1
