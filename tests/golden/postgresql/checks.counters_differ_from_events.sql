SELECT found.id, found.counters_differ_from_events, found.error_differs_from_events
FROM (
    SELECT
        task_executions.id AS id,
        coalesce(
            task_executions.attempt != CAST(coalesce(last_attempt.recorded, '1') AS INTEGER)
                OR task_executions.recovery_attempts != CAST(
                    coalesce(last_recovery_attempts.recorded, '0') AS INTEGER
                ),
            false
        ) AS counters_differ_from_events,
        coalesce(task_executions.last_error IS DISTINCT FROM last_error.recorded, false) AS error_differs_from_events
    FROM task_executions
    LEFT OUTER JOIN (
        SELECT recorded_attempt.id AS id, recorded_attempt.recorded AS recorded
        FROM (
            SELECT
                execution_events.task_execution_id AS id,
                CAST(execution_events.event_data AS JSONB) ->> 'attempt' AS recorded,
                row_number() OVER (
                    PARTITION BY execution_events.task_execution_id
                    ORDER BY execution_events.sequence_num DESC
                ) AS nth
            FROM execution_events
            WHERE
                execution_events.event_type IN (
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
                AND execution_events.event_data LIKE '%%"attempt"%%'
                AND (CAST(execution_events.event_data AS JSONB) ->> 'attempt') IS NOT NULL
        ) AS recorded_attempt
        WHERE recorded_attempt.nth = 1
    ) AS last_attempt ON last_attempt.id = task_executions.id
    LEFT OUTER JOIN (
        SELECT recorded_recovery_attempts.id AS id, recorded_recovery_attempts.recorded AS recorded
        FROM (
            SELECT
                execution_events.task_execution_id AS id,
                CAST(execution_events.event_data AS JSONB) ->> 'recovery_attempts' AS recorded,
                row_number() OVER (
                    PARTITION BY execution_events.task_execution_id
                    ORDER BY execution_events.sequence_num DESC
                ) AS nth
            FROM execution_events
            WHERE
                execution_events.event_type IN (
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
                AND execution_events.event_data LIKE '%%"recovery_attempts"%%'
                AND (CAST(execution_events.event_data AS JSONB) ->> 'recovery_attempts') IS NOT NULL
        ) AS recorded_recovery_attempts
        WHERE recorded_recovery_attempts.nth = 1
    ) AS last_recovery_attempts ON last_recovery_attempts.id = task_executions.id
    LEFT OUTER JOIN (
        SELECT recorded_error.id AS id, recorded_error.recorded AS recorded
        FROM (
            SELECT
                execution_events.task_execution_id AS id,
                CAST(execution_events.event_data AS JSONB) ->> 'error' AS recorded,
                row_number() OVER (
                    PARTITION BY execution_events.task_execution_id
                    ORDER BY execution_events.sequence_num DESC
                ) AS nth
            FROM execution_events
            WHERE
                execution_events.event_type IN (
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
                AND execution_events.event_data LIKE '%%"error"%%'
                AND (CAST(execution_events.event_data AS JSONB) ->> 'error') IS NOT NULL
        ) AS recorded_error
        WHERE recorded_error.nth = 1
    ) AS last_error ON last_error.id = task_executions.id
) AS found
WHERE found.counters_differ_from_events OR found.error_differs_from_events
