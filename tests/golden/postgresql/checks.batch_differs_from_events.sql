SELECT task_batches.id
FROM task_batches
JOIN (
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
) AS made ON made.id = task_batches.id
    AND task_batches.completed_at IS NULL
    AND (
        made.kind IS DISTINCT FROM task_batches.kind
            OR made.on_failed IS DISTINCT FROM task_batches.on_failed
            OR made.name IS DISTINCT FROM task_batches.name
    )
