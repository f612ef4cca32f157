SELECT execution_events.task_execution_id AS id
FROM execution_events
WHERE
    execution_events.event_type IN ('task_reset', 'task_abandoned')
    AND (
        CAST((CAST(execution_events.event_data AS JSONB) ->> 'lease_expires_at') AS TIMESTAMP WITH TIME ZONE) IS NULL
            OR execution_events.created_at < CAST(
                (CAST(execution_events.event_data AS JSONB) ->> 'lease_expires_at') AS TIMESTAMP WITH TIME ZONE
            )
    )
