SELECT execution_events.task_execution_id AS id
FROM execution_events
WHERE
    execution_events.event_type IN ('task_reset', 'task_abandoned')
    AND (
        json_extract(execution_events.event_data, '$.lease_expires_at') IS NULL
            OR execution_events.created_at < json_extract(execution_events.event_data, '$.lease_expires_at')
    )
