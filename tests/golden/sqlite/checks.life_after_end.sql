SELECT steps.id
FROM (
    SELECT
        execution_events.task_execution_id AS id,
        execution_events.event_type AS event_type,
        lag(execution_events.event_type) OVER (
            PARTITION BY execution_events.task_execution_id
            ORDER BY execution_events.sequence_num
        ) AS "before"
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
WHERE
    steps."before" IN (
        'task_completed',
        'task_failed',
        'task_abandoned',
        'task_cancelled',
        'task_expired',
        'task_discarded'
    )
    AND NOT (
        steps."before" IN ('task_failed', 'task_abandoned')
            AND steps.event_type IN ('task_requeued', 'task_retry_scheduled', 'task_discarded')
    )
