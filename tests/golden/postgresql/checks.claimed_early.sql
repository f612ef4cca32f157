SELECT steps.id
FROM (
    SELECT
        execution_events.task_execution_id AS id,
        execution_events.event_type AS event_type,
        execution_events.created_at AS created_at,
        lag(CAST(CAST(execution_events.event_data AS JSONB) ->> 'available_at' AS TIMESTAMP WITH TIME ZONE)) OVER (
            PARTITION BY execution_events.task_execution_id
            ORDER BY execution_events.sequence_num
        ) AS due
    FROM execution_events
    WHERE execution_events.event_type IN (
        'task_created',
        'task_claimed',
        'task_completed',
        'task_retry_scheduled',
        'task_failed',
        'task_reset',
        'task_abandoned',
        'task_released',
        'task_snoozed',
        'task_cancelled',
        'task_expired',
        'task_discarded',
        'task_replaced',
        'task_requeued',
        'task_rescheduled'
    )
) AS steps
WHERE steps.event_type = 'task_claimed' AND (steps.due IS NULL OR steps.created_at < steps.due)
