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
    WHERE task_executions.id >= %(from_id)s::UUID AND task_executions.id < %(to_id)s::UUID
) AS looked
WHERE
    (%(queue)s::VARCHAR IS NULL OR looked.queue = %(queue)s::VARCHAR)
    AND (%(task_name)s::VARCHAR IS NULL OR looked.task_name = %(task_name)s::VARCHAR)
    AND (%(partition_key)s::VARCHAR IS NULL OR looked.partition_key = %(partition_key)s::VARCHAR)
    AND (%(topic)s::VARCHAR IS NULL OR looked.topic = %(topic)s::VARCHAR)
    AND (%(status)s::VARCHAR IS NULL OR looked.status = %(status)s::VARCHAR)
    AND (
        %(worker)s::UUID IS NULL
            OR (
                SELECT execution_events.sequence_num
                FROM execution_events
                WHERE
                    execution_events.task_execution_id = looked.id
                    AND execution_events.event_type = 'task_claimed'
                    AND execution_events.worker_id = %(worker)s::UUID
                LIMIT 1
            ) IS NOT NULL
    )
    AND (
        %(exception)s::VARCHAR IS NULL
            OR substr(looked.last_error || ':', 1, length(%(exception)s::VARCHAR) + 1) = (
                %(exception)s::VARCHAR || ':'
            )
            OR substr(looked.last_error || ':', 1, length(%(exception_end)s::VARCHAR) + 1) = (
                %(exception_end)s::VARCHAR || ':'
            )
    )
    AND (
        %(argument_first)s::VARCHAR IS NULL
            OR replace(
                replace(replace(looked.args, ' ', ''), %(argument_first)s::VARCHAR, ''),
                %(argument_last)s::VARCHAR,
                ''
            ) != replace(looked.args, ' ', '')
    )
ORDER BY looked.id DESC
LIMIT %(limit)s::BIGINT
