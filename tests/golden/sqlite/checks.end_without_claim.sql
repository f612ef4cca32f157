SELECT execution_events.task_execution_id AS id
FROM execution_events
WHERE
    execution_events.event_type != 'task_claimed'
    AND execution_events.lease_token IS NOT NULL
    AND (
        (
            execution_events.event_type NOT IN (
                'task_abandoned',
                'task_cancelled',
                'task_completed',
                'task_failed',
                'task_released',
                'task_reset',
                'task_retry_scheduled',
                'task_snoozed'
            )
        )
            OR NOT (
                EXISTS (
                    SELECT claimed.sequence_num
                    FROM execution_events AS claimed
                    WHERE
                        claimed.task_execution_id = execution_events.task_execution_id
                        AND claimed.lease_token = execution_events.lease_token
                        AND claimed.event_type = 'task_claimed'
                )
            )
    )
