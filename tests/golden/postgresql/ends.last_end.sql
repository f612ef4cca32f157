SELECT ends.event_type, ends.event_data
FROM (
    SELECT
        execution_events.sequence_num AS sequence_num,
        execution_events.event_type AS event_type,
        execution_events.event_data AS event_data
    FROM execution_events
    WHERE
        execution_events.task_execution_id = %(task_id)s::UUID
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
                    WHEN CASE
                    WHEN (
                        execution_events.event_data ~ '^\{(?:"[^"\\]*": ?(?:"[^"\\]*"|-?[0-9.]+|true|false|null),? ?)*\}$'
                    ) THEN true
                    ELSE (
                        regexp_replace(execution_events.event_data, '"([^"\\]|\\.)*"', '0', 'g') ~ '^[[:space:]]*\{([][{}:,[:space:]]|-?[0-9][0-9.eE+-]*|true|false|null)*\}[[:space:]]*$'
                    )
                AND length(
                    translate(
                        regexp_replace(execution_events.event_data, '"([^"\\]|\\.)*"', '0', 'g'),
                        '{[',
                        ''
                    )
                ) = length(
                    translate(
                        regexp_replace(execution_events.event_data, '"([^"\\]|\\.)*"', '0', 'g'),
                        '}]',
                        ''
                    )
                )
                END THEN (CAST(execution_events.event_data AS JSONB) ->> 'reason')
                END = %(param_1)s::VARCHAR
        )
    UNION ALL
    SELECT
        execution_events.sequence_num AS sequence_num,
        execution_events.event_type AS event_type,
        execution_events.event_data AS event_data
    FROM execution_events
    WHERE
        execution_events.task_execution_id = %(task_id)s::UUID
        AND execution_events.lease_token IS NULL
        AND execution_events.event_type IN ('task_retry_scheduled', 'task_requeued', 'task_replaced')
) AS ends
ORDER BY ends.sequence_num DESC
LIMIT %(param_2)s::INTEGER
