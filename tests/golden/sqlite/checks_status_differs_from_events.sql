SELECT task_executions.id
FROM task_executions JOIN (SELECT execution_events.task_execution_id AS task_execution_id,
    max(execution_events.sequence_num) AS sequence_num
FROM execution_events
WHERE execution_events.event_type IN ('task_created', 'task_claimed', 'task_completed', 'task_retry_scheduled',
    'task_failed', 'task_reset', 'task_abandoned', 'task_released', 'task_snoozed', 'task_cancelled', 'task_expired',
    'task_discarded', 'task_replaced', 'task_requeued', 'task_rescheduled') GROUP BY execution_events.task_execution_id)
    AS last ON last.task_execution_id = task_executions.id JOIN execution_events ON execution_events.sequence_num =
    last.sequence_num
WHERE task_executions.status != CASE WHEN (execution_events.event_type = 'task_created') THEN 'Ready' WHEN
    (execution_events.event_type = 'task_claimed') THEN 'Running' WHEN (execution_events.event_type = 'task_completed')
    THEN 'Completed' WHEN (execution_events.event_type = 'task_retry_scheduled') THEN 'Ready' WHEN
    (execution_events.event_type = 'task_failed') THEN 'Failed' WHEN (execution_events.event_type = 'task_reset') THEN
    'Ready' WHEN (execution_events.event_type = 'task_abandoned') THEN 'Failed' WHEN (execution_events.event_type =
    'task_released') THEN 'Ready' WHEN (execution_events.event_type = 'task_snoozed') THEN 'Ready' WHEN
    (execution_events.event_type = 'task_cancelled') THEN 'Cancelled' WHEN (execution_events.event_type =
    'task_expired') THEN 'Cancelled' WHEN (execution_events.event_type = 'task_discarded') THEN 'Cancelled' WHEN
    (execution_events.event_type = 'task_replaced') THEN 'Ready' WHEN (execution_events.event_type = 'task_requeued')
    THEN 'Ready' WHEN (execution_events.event_type = 'task_rescheduled') THEN 'Ready' END
