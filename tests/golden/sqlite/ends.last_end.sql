SELECT ends.event_type, ends.event_data
FROM (
    SELECT
        execution_events.sequence_num AS sequence_num,
        execution_events.event_type AS event_type,
        execution_events.event_data AS event_data
    FROM execution_events
    WHERE
        execution_events.task_execution_id = :task_id
        AND execution_events.event_type != 'task_claimed'
        AND execution_events.lease_token IS NOT NULL
        AND (
            execution_events.event_type IN (
                'task_abandoned',
                'task_cancelled',
                'task_completed',
                'task_failed',
                'task_retry_scheduled',
                'task_snoozed'
            )
                OR execution_events.event_type = 'task_released'
                AND CASE
                    WHEN (
                        CASE
                            WHEN (json_valid(execution_events.event_data) = 1) THEN json_type(
                                execution_events.event_data
                            )
                            ELSE ''
                        END = 'object'
                    ) THEN json_extract(execution_events.event_data, '$.reason')
                END = :param_1
        )
    UNION ALL
    SELECT
        execution_events.sequence_num AS sequence_num,
        execution_events.event_type AS event_type,
        execution_events.event_data AS event_data
    FROM execution_events
    WHERE
        execution_events.task_execution_id = :task_id
        AND execution_events.lease_token IS NULL
        AND execution_events.event_type IN ('task_retry_scheduled', 'task_requeued', 'task_replaced')
) AS ends
ORDER BY ends.sequence_num DESC
LIMIT :param_2
OFFSET :param_3
