SELECT
    DISTINCT execution_events.pipeline_execution_id AS id,
    CAST(execution_events.event_data AS JSONB) ->> 'kind' AS kind,
    CAST(execution_events.event_data AS JSONB) ->> 'on_failed' AS on_failed,
    CAST(execution_events.event_data AS JSONB) ->> 'name' AS name,
    CAST(execution_events.event_data AS JSONB) ->> 'links' AS links
FROM execution_events
WHERE
    execution_events.task_execution_id IS NULL
    AND execution_events.lease_token IS NULL
    AND execution_events.event_type = 'batch_created'
