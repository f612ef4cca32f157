WITH retry AS MATERIALIZED (
    SELECT looked.task_execution_id AS id, json_extract(looked.event_data, '$.exception') AS exception
    FROM (
        SELECT
            execution_events.task_execution_id AS task_execution_id,
            execution_events.event_type AS event_type,
            execution_events.event_data AS event_data
        FROM execution_events
        ORDER BY execution_events.sequence_num DESC
        LIMIT 5000
        OFFSET :param_1
    ) AS looked
    WHERE looked.event_type = 'task_retry_scheduled'
)
SELECT task_executions.queue, task_executions.task_name, retry.exception, count(*) AS number
FROM retry
JOIN task_executions ON task_executions.id = retry.id
GROUP BY task_executions.queue, task_executions.task_name, retry.exception
