SELECT found.recorded
FROM (
    SELECT
        execution_events.sequence_num AS sequence_num,
        json_extract(execution_events.event_data, '$.error') AS recorded
    FROM execution_events
    WHERE
        execution_events.task_execution_id = task_executions.id
        AND execution_events.event_type != 'task_claimed'
        AND execution_events.lease_token IS NOT NULL
        AND execution_events.event_type IN (
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
        AND execution_events.event_data LIKE '%"error"%'
        AND json_extract(execution_events.event_data, '$.error') IS NOT NULL
    UNION ALL
    SELECT
        execution_events.sequence_num AS sequence_num,
        json_extract(execution_events.event_data, '$.error') AS recorded
    FROM execution_events
    WHERE
        execution_events.task_execution_id = task_executions.id
        AND execution_events.lease_token IS NULL
        AND execution_events.event_type IN (
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
        AND execution_events.event_data LIKE '%"error"%'
        AND json_extract(execution_events.event_data, '$.error') IS NOT NULL
) AS found
ORDER BY found.sequence_num + 0 DESC
LIMIT :param_1
OFFSET :param_2
