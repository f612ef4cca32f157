SELECT claims.created_at AS restarted_at
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
    WHERE execution_events.task_execution_id = :task_id AND execution_events.event_type = 'task_claimed'
) AS claims
WHERE claims.sequence_num > (
    SELECT max(others.sequence_num) AS max_1
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
        WHERE execution_events.task_execution_id = :task_id AND execution_events.lease_token IS NULL
    ) AS others
    WHERE others.event_type IN ('task_replaced', 'task_requeued', 'task_retry_scheduled', 'task_rewound')
)
ORDER BY claims.lease_token
LIMIT 1
OFFSET :param_1
