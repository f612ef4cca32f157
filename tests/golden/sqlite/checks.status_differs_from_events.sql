SELECT
    found.id,
    found.status_differs_from_events,
    found.worker_differs_from_claim,
    found.end_differs_from_events,
    found.retry_differs_from_events,
    found.due_differs_from_events
FROM (
    SELECT
        task_executions.id AS id,
        coalesce(
            task_executions.status != CASE
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
            END,
            0
        ) AS status_differs_from_events,
        coalesce(
            task_executions.status = 'Running'
                AND execution_events.event_type IN ('task_claimed')
                AND task_executions.worker_id IS NOT execution_events.worker_id,
            0
        ) AS worker_differs_from_claim,
        coalesce(
            task_executions.status IN ('Cancelled', 'Completed', 'Failed')
                AND execution_events.event_type IN (
                    'task_completed',
                    'task_failed',
                    'task_abandoned',
                    'task_cancelled',
                    'task_expired',
                    'task_discarded'
                )
                AND task_executions.completed_at IS NOT execution_events.created_at,
            0
        ) AS end_differs_from_events,
        coalesce(
            task_executions.retry_at IS NOT CASE
                WHEN (
                    task_executions.status = 'Ready'
                        AND execution_events.event_type IN (
                            'task_created',
                            'task_retry_scheduled',
                            'task_reset',
                            'task_released',
                            'task_snoozed',
                            'task_replaced',
                            'task_requeued',
                            'task_rescheduled'
                        )
                ) THEN CASE
                WHEN (execution_events.event_type = 'task_retry_scheduled') THEN json_extract(
                    execution_events.event_data,
                    '$.available_at'
                )
                WHEN (execution_events.event_type = 'task_rescheduled') THEN CASE
                WHEN (task_executions.retry_at IS NOT NULL) THEN json_extract(
                    execution_events.event_data,
                    '$.available_at'
                )
            END
                ELSE NULL
            END
            END,
            0
        ) AS retry_differs_from_events,
        coalesce(
            CASE
                WHEN (
                    task_executions.status = 'Ready'
                        AND execution_events.event_type IN (
                            'task_created',
                            'task_retry_scheduled',
                            'task_reset',
                            'task_released',
                            'task_snoozed',
                            'task_replaced',
                            'task_requeued',
                            'task_rescheduled'
                        )
                        AND task_outbox.available_at IS NOT NULL
                ) THEN task_outbox.available_at IS NOT json_extract(
                    execution_events.event_data,
                    '$.available_at'
                )
            END,
            0
        ) AS due_differs_from_events
    FROM task_executions
    JOIN (
        SELECT
            execution_events.task_execution_id AS task_execution_id,
            max(execution_events.sequence_num) AS sequence_num
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
        GROUP BY execution_events.task_execution_id
    ) AS last ON last.task_execution_id = task_executions.id
    JOIN execution_events ON execution_events.sequence_num = last.sequence_num
    LEFT OUTER JOIN task_outbox ON task_outbox.task_execution_id = task_executions.id
) AS found
WHERE
    found.status_differs_from_events = 1
    OR found.worker_differs_from_claim = 1
    OR found.end_differs_from_events = 1
    OR found.retry_differs_from_events = 1
    OR found.due_differs_from_events = 1
