SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.cancel_requested_at IS NOT NULL
    AND NOT (
        EXISTS (
            SELECT execution_events.sequence_num
            FROM execution_events
            WHERE
                execution_events.task_execution_id = task_executions.id
                AND execution_events.lease_token IS NULL
                AND execution_events.event_type = 'task_cancel_requested'
                AND execution_events.created_at = task_executions.cancel_requested_at
        )
    )
