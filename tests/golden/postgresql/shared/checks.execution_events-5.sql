SELECT max(execution_events.created_at) AS max_1
FROM execution_events
WHERE
    execution_events.task_execution_id = task_executions.id
    AND execution_events.lease_token IS NULL
    AND execution_events.event_type = 'task_cancel_requested'
    AND execution_events.sequence_num > (
        SELECT claim.sequence_num
        FROM execution_events AS claim
        WHERE
            claim.task_execution_id = task_executions.id
            AND claim.lease_token = task_executions.lease_token
            AND claim.event_type = 'task_claimed'
    )
