SELECT found.id, found.counters_differ_from_events, found.error_differs_from_events
FROM (
    SELECT
        task_executions.id AS id,
        coalesce(
            task_executions.attempt != CAST(coalesce(last_attempt.said, '1') AS INTEGER)
                OR task_executions.recovery_attempts != CAST(
                    coalesce(last_recovery_attempts.said, '0') AS INTEGER
                ),
            0
        ) AS counters_differ_from_events,
        coalesce(task_executions.last_error IS NOT last_error.said, 0) AS error_differs_from_events
    FROM task_executions
    LEFT OUTER JOIN (
        SELECT said_attempt.id AS id, said_attempt.said AS said
        FROM (
            SELECT
                execution_events.task_execution_id AS id,
                json_extract(execution_events.event_data, '$.attempt') AS said,
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
                AND execution_events.event_data LIKE '%"attempt"%'
                AND json_extract(execution_events.event_data, '$.attempt') IS NOT NULL
        ) AS said_attempt
        WHERE said_attempt.nth = 1
    ) AS last_attempt ON last_attempt.id = task_executions.id
    LEFT OUTER JOIN (
        SELECT said_recovery_attempts.id AS id, said_recovery_attempts.said AS said
        FROM (
            SELECT
                execution_events.task_execution_id AS id,
                json_extract(execution_events.event_data, '$.recovery_attempts') AS said,
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
                AND execution_events.event_data LIKE '%"recovery_attempts"%'
                AND json_extract(execution_events.event_data, '$.recovery_attempts') IS NOT NULL
        ) AS said_recovery_attempts
        WHERE said_recovery_attempts.nth = 1
    ) AS last_recovery_attempts ON last_recovery_attempts.id = task_executions.id
    LEFT OUTER JOIN (
        SELECT said_error.id AS id, said_error.said AS said
        FROM (
            SELECT
                execution_events.task_execution_id AS id,
                json_extract(execution_events.event_data, '$.error') AS said,
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
                AND execution_events.event_data LIKE '%"error"%'
                AND json_extract(execution_events.event_data, '$.error') IS NOT NULL
        ) AS said_error
        WHERE said_error.nth = 1
    ) AS last_error ON last_error.id = task_executions.id
) AS found
WHERE found.counters_differ_from_events = 1 OR found.error_differs_from_events = 1
