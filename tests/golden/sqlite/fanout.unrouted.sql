SELECT execution_events.sequence_num
FROM execution_events
WHERE
    execution_events.task_execution_id IS NULL
    AND execution_events.lease_token IS NULL
    AND execution_events.event_type = 'event_unrouted'
    AND execution_events.pipeline_execution_id = :pipeline_execution_id
