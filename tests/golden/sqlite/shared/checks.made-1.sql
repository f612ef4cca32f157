SELECT
    DISTINCT execution_events.pipeline_execution_id AS id,
    json_extract(execution_events.event_data, '$.kind') AS kind,
    json_extract(execution_events.event_data, '$.on_failed') AS on_failed,
    json_extract(execution_events.event_data, '$.name') AS name,
    json_extract(execution_events.event_data, '$.links') AS links
FROM execution_events
WHERE
    execution_events.task_execution_id IS NULL
    AND execution_events.lease_token IS NULL
    AND execution_events.event_type = 'batch_created'
