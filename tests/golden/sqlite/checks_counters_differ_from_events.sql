SELECT task_executions.id
FROM task_executions LEFT OUTER JOIN (SELECT said_attempt.id AS id, CAST(said_attempt.number AS INTEGER) AS number
FROM (SELECT execution_events.task_execution_id AS id, json_extract(execution_events.event_data, '$.attempt') AS number,
    row_number() OVER (PARTITION BY execution_events.task_execution_id
ORDER BY execution_events.sequence_num DESC) AS nth
FROM execution_events
WHERE execution_events.event_type IN ('task_created', 'task_claimed', 'task_completed', 'task_retry_scheduled',
    'task_failed', 'task_reset', 'task_abandoned', 'task_released', 'task_snoozed', 'task_cancelled', 'task_expired',
    'task_discarded', 'task_replaced', 'task_requeued', 'task_rescheduled') AND
    json_extract(execution_events.event_data, '$.attempt') IS NOT NULL) AS said_attempt
WHERE said_attempt.nth = 1) AS last_attempt ON last_attempt.id = task_executions.id LEFT OUTER JOIN (SELECT
    said_recovery_attempts.id AS id, CAST(said_recovery_attempts.number AS INTEGER) AS number
FROM (SELECT execution_events.task_execution_id AS id, json_extract(execution_events.event_data, '$.recovery_attempts')
    AS number, row_number() OVER (PARTITION BY execution_events.task_execution_id
ORDER BY execution_events.sequence_num DESC) AS nth
FROM execution_events
WHERE execution_events.event_type IN ('task_created', 'task_claimed', 'task_completed', 'task_retry_scheduled',
    'task_failed', 'task_reset', 'task_abandoned', 'task_released', 'task_snoozed', 'task_cancelled', 'task_expired',
    'task_discarded', 'task_replaced', 'task_requeued', 'task_rescheduled') AND
    json_extract(execution_events.event_data, '$.recovery_attempts') IS NOT NULL) AS said_recovery_attempts
WHERE said_recovery_attempts.nth = 1) AS last_recovery_attempts ON last_recovery_attempts.id = task_executions.id
WHERE task_executions.attempt != coalesce(last_attempt.number, 1) OR task_executions.recovery_attempts !=
    coalesce(last_recovery_attempts.number, 0)
