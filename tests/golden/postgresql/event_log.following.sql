SELECT
    execution_events.sequence_num,
    execution_events.pipeline_execution_id,
    execution_events.task_execution_id,
    execution_events.event_type,
    execution_events.event_data,
    execution_events.worker_id,
    execution_events.lease_token,
    execution_events.created_at
FROM execution_events
WHERE execution_events.sequence_num > %(after)s::BIGINT
ORDER BY execution_events.sequence_num
LIMIT %(limit)s::BIGINT
