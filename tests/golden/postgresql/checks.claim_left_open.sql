SELECT task_executions.id
FROM execution_events
JOIN task_executions ON task_executions.id = execution_events.task_execution_id
WHERE
    execution_events.event_type = 'task_claimed'
    AND (task_executions.status = 'Running' AND task_executions.lease_token = execution_events.lease_token) = (
        EXISTS (
            SELECT ended.sequence_num
            FROM execution_events AS ended
            WHERE
                ended.task_execution_id = execution_events.task_execution_id
                AND ended.lease_token = execution_events.lease_token
                AND ended.event_type != 'task_claimed'
                AND ended.lease_token IS NOT NULL
        )
    )
