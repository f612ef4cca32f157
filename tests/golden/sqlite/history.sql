SELECT execution_events.sequence_num, execution_events.pipeline_execution_id, execution_events.task_execution_id,
    execution_events.event_type, execution_events.event_data, execution_events.worker_id, execution_events.lease_token,
    execution_events.created_at
FROM execution_events
WHERE execution_events.task_execution_id = :task_id AND execution_events.event_type = 'task_claimed' OR
    execution_events.task_execution_id = :task_id AND execution_events.event_type != 'task_claimed' AND
    execution_events.lease_token IS NOT NULL OR execution_events.task_execution_id = :task_id AND
    execution_events.lease_token IS NULL
ORDER BY execution_events.sequence_num
