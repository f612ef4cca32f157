SELECT
    letter.queue,
    letter.task_name,
    letter.exception,
    letter.head,
    min(CAST(letter.place + 100000 AS TEXT) || CAST(letter.task_execution_id AS TEXT)) AS newest,
    max(letter.failed_at) AS last_failed_at,
    min(letter.failed_at) AS first_failed_at,
    count(*) AS number
FROM (
    SELECT
        newest.task_execution_id AS task_execution_id,
        newest.failed_at AS failed_at,
        newest.queue AS queue,
        newest.task_name AS task_name,
        newest.exception AS exception,
        (
            SELECT substr(task_executions.last_error, 1, 400) AS substr_1
            FROM task_executions
            WHERE task_executions.id = newest.task_execution_id
        ) AS head,
        row_number() OVER (ORDER BY newest.failed_at DESC, newest.task_execution_id DESC) AS place
    FROM (
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
        ORDER BY dead_letters.failed_at DESC, dead_letters.task_execution_id DESC
        LIMIT :limit
        OFFSET :param_1
    ) AS newest
) AS letter
GROUP BY letter.queue, letter.task_name, letter.exception, letter.head
