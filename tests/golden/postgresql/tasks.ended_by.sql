SELECT execution_events.event_type
FROM execution_events
WHERE
    execution_events.task_execution_id = %(task_id)s::UUID
    AND execution_events.lease_token = %(lease_token)s::BIGINT
    AND execution_events.worker_id = %(worker_id)s::UUID
    AND execution_events.event_type != 'task_claimed'
    AND execution_events.event_type IN (
        'task_abandoned',
        'task_cancelled',
        'task_completed',
        'task_failed',
        'task_released',
        'task_reset',
        'task_retry_scheduled',
        'task_snoozed'
    )
