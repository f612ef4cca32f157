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
    dead_letters.failed_at >= %(since)s::TIMESTAMP WITH TIME ZONE
    AND dead_letters.failed_at < %(until)s::TIMESTAMP WITH TIME ZONE
    AND (%(queue)s::VARCHAR IS NULL OR dead_letters.queue = %(queue)s::VARCHAR)
    AND (%(task_name)s::VARCHAR IS NULL OR dead_letters.task_name = %(task_name)s::VARCHAR)
    AND (%(topic)s::VARCHAR IS NULL OR dead_letters.topic = %(topic)s::VARCHAR)
    AND (%(partition_key)s::VARCHAR IS NULL OR dead_letters.partition_key = %(partition_key)s::VARCHAR)
    AND (
        %(exception)s::VARCHAR IS NULL
            OR dead_letters.exception = %(exception)s::VARCHAR
            OR substr(dead_letters.exception, length(dead_letters.exception) - length(%(exception)s::VARCHAR)) = %(exception_end)s::VARCHAR
    )
    AND (
        %(head)s::BIGINT IS NULL
            OR (/* dead_letters.execution_events-1 */) IS NULL
            AND (/* dead_letters.execution_events-2 */) IS NULL
    )
    AND (dead_letters.failed_at, dead_letters.task_execution_id) < (
        %(after_failed_at)s::TIMESTAMP WITH TIME ZONE,
        %(after_id)s::UUID
    )
ORDER BY dead_letters.failed_at DESC, dead_letters.task_execution_id DESC
LIMIT %(limit)s::BIGINT
