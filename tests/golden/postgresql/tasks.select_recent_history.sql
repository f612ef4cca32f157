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
        claims.sequence_num AS sequence_num,
        claims.pipeline_execution_id AS pipeline_execution_id,
        claims.task_execution_id AS task_execution_id,
        claims.event_type AS event_type,
        claims.event_data AS event_data,
        claims.worker_id AS worker_id,
        claims.lease_token AS lease_token,
        claims.created_at AS created_at
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
        ORDER BY execution_events.lease_token DESC
        LIMIT %(limit)s::BIGINT
    ) AS claims
    UNION ALL
    SELECT
        ends.sequence_num AS sequence_num,
        ends.pipeline_execution_id AS pipeline_execution_id,
        ends.task_execution_id AS task_execution_id,
        ends.event_type AS event_type,
        ends.event_data AS event_data,
        ends.worker_id AS worker_id,
        ends.lease_token AS lease_token,
        ends.created_at AS created_at
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
            AND execution_events.event_type != 'task_claimed'
            AND execution_events.lease_token IS NOT NULL
        ORDER BY execution_events.lease_token DESC
        LIMIT %(limit)s::BIGINT
    ) AS ends
    UNION ALL
    SELECT
        others.sequence_num AS sequence_num,
        others.pipeline_execution_id AS pipeline_execution_id,
        others.task_execution_id AS task_execution_id,
        others.event_type AS event_type,
        others.event_data AS event_data,
        others.worker_id AS worker_id,
        others.lease_token AS lease_token,
        others.created_at AS created_at
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
        WHERE execution_events.task_execution_id = %(task_id)s::UUID AND execution_events.lease_token IS NULL
        ORDER BY execution_events.sequence_num DESC
        LIMIT %(limit)s::BIGINT
    ) AS others
) AS events
ORDER BY events.sequence_num DESC
LIMIT %(limit)s::BIGINT
