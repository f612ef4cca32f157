SELECT count(*) AS tasks
FROM (
    SELECT 1 AS one
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
    LIMIT :limit
    OFFSET :param_1
) AS some
