SELECT
    events.sequence_num,
    events.pipeline_execution_id,
    events.task_execution_id,
    events.event_type,
    events.event_data,
    events.worker_id,
    events.lease_token,
    events.created_at
FROM (
    SELECT
        execution_events.sequence_num AS sequence_num,
        execution_events.pipeline_execution_id AS pipeline_execution_id,
        execution_events.task_execution_id AS task_execution_id,
        execution_events.event_type AS event_type,
        execution_events.event_data AS event_data,
        execution_events.worker_id AS worker_id,
        execution_events.lease_token AS lease_token,
        execution_events.created_at AS created_at
    FROM execution_events
    WHERE
        execution_events.task_execution_id = %(task_id)s::UUID
        AND execution_events.event_type = 'task_claimed'
    UNION ALL
    SELECT
        execution_events.sequence_num AS sequence_num,
        execution_events.pipeline_execution_id AS pipeline_execution_id,
        execution_events.task_execution_id AS task_execution_id,
        execution_events.event_type AS event_type,
        execution_events.event_data AS event_data,
        execution_events.worker_id AS worker_id,
        execution_events.lease_token AS lease_token,
        execution_events.created_at AS created_at
    FROM execution_events
    WHERE
        execution_events.task_execution_id = %(task_id)s::UUID
        AND execution_events.event_type != 'task_claimed'
        AND execution_events.lease_token IS NOT NULL
    UNION ALL
    SELECT
        execution_events.sequence_num AS sequence_num,
        execution_events.pipeline_execution_id AS pipeline_execution_id,
        execution_events.task_execution_id AS task_execution_id,
        execution_events.event_type AS event_type,
        execution_events.event_data AS event_data,
        execution_events.worker_id AS worker_id,
        execution_events.lease_token AS lease_token,
        execution_events.created_at AS created_at
    FROM execution_events
    WHERE execution_events.task_execution_id = %(task_id)s::UUID AND execution_events.lease_token IS NULL
) AS events
ORDER BY events.sequence_num
