SELECT found.recorded
FROM (
    SELECT
        execution_events.sequence_num AS sequence_num,
        CASE
            WHEN (execution_events.event_type = 'task_created') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_claimed') THEN 'Running'
            WHEN (execution_events.event_type = 'task_completed') THEN 'Completed'
            WHEN (execution_events.event_type = 'task_retry_scheduled') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_failed') THEN 'Failed'
            WHEN (execution_events.event_type = 'task_reset') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_abandoned') THEN 'Failed'
            WHEN (execution_events.event_type = 'task_released') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_snoozed') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_cancelled') THEN 'Cancelled'
            WHEN (execution_events.event_type = 'task_expired') THEN 'Cancelled'
            WHEN (execution_events.event_type = 'task_discarded') THEN 'Cancelled'
            WHEN (execution_events.event_type = 'task_replaced') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_requeued') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_rescheduled') THEN 'Ready'
        END AS recorded
    FROM execution_events
    WHERE
        execution_events.task_execution_id = task_executions.id
        AND execution_events.event_type = 'task_claimed'
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
    UNION ALL
    SELECT
        execution_events.sequence_num AS sequence_num,
        CASE
            WHEN (execution_events.event_type = 'task_created') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_claimed') THEN 'Running'
            WHEN (execution_events.event_type = 'task_completed') THEN 'Completed'
            WHEN (execution_events.event_type = 'task_retry_scheduled') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_failed') THEN 'Failed'
            WHEN (execution_events.event_type = 'task_reset') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_abandoned') THEN 'Failed'
            WHEN (execution_events.event_type = 'task_released') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_snoozed') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_cancelled') THEN 'Cancelled'
            WHEN (execution_events.event_type = 'task_expired') THEN 'Cancelled'
            WHEN (execution_events.event_type = 'task_discarded') THEN 'Cancelled'
            WHEN (execution_events.event_type = 'task_replaced') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_requeued') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_rescheduled') THEN 'Ready'
        END AS recorded
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
    UNION ALL
    SELECT
        execution_events.sequence_num AS sequence_num,
        CASE
            WHEN (execution_events.event_type = 'task_created') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_claimed') THEN 'Running'
            WHEN (execution_events.event_type = 'task_completed') THEN 'Completed'
            WHEN (execution_events.event_type = 'task_retry_scheduled') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_failed') THEN 'Failed'
            WHEN (execution_events.event_type = 'task_reset') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_abandoned') THEN 'Failed'
            WHEN (execution_events.event_type = 'task_released') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_snoozed') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_cancelled') THEN 'Cancelled'
            WHEN (execution_events.event_type = 'task_expired') THEN 'Cancelled'
            WHEN (execution_events.event_type = 'task_discarded') THEN 'Cancelled'
            WHEN (execution_events.event_type = 'task_replaced') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_requeued') THEN 'Ready'
            WHEN (execution_events.event_type = 'task_rescheduled') THEN 'Ready'
        END AS recorded
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
) AS found
ORDER BY found.sequence_num + 0 DESC
LIMIT :param_1
OFFSET :param_2
