SELECT
    mine.task_execution_id AS task_id,
    (
        SELECT task_executions.task_name
        FROM task_executions
        WHERE task_executions.id = mine.task_execution_id
    ) AS task_name,
    (
        SELECT task_executions.status
        FROM task_executions
        WHERE task_executions.id = mine.task_execution_id
    ) AS status,
    mine.event_type,
    mine.created_at AS at,
    mine.event_data
FROM (
    SELECT
        looked.sequence_num AS sequence_num,
        looked.task_execution_id AS task_execution_id,
        looked.event_type AS event_type,
        looked.worker_id AS worker_id,
        looked.created_at AS created_at,
        looked.event_data AS event_data
    FROM (
        SELECT
            execution_events.sequence_num AS sequence_num,
            execution_events.task_execution_id AS task_execution_id,
            execution_events.event_type AS event_type,
            execution_events.worker_id AS worker_id,
            execution_events.created_at AS created_at,
            execution_events.event_data AS event_data
        FROM execution_events
        WHERE execution_events.sequence_num >= %(first)s::BIGINT
        ORDER BY execution_events.sequence_num
        LIMIT %(most)s::BIGINT
    ) AS looked
    WHERE looked.worker_id = %(worker_id)s::UUID AND looked.event_type IN ('task_reset', 'task_abandoned')
    ORDER BY looked.sequence_num
    LIMIT %(limit)s::BIGINT
) AS mine
ORDER BY mine.sequence_num
