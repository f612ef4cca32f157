SELECT execution_events.sequence_num
FROM execution_events
WHERE
    execution_events.task_execution_id = dead_letters.task_execution_id
    AND execution_events.lease_token IS NULL
    AND execution_events.event_type IN ('task_failed', 'task_abandoned')
    AND (
        execution_events.sequence_num > %(head)s::BIGINT
            OR (
                CAST(CAST(execution_events.xact_id AS TEXT) AS BIGINT) <@ CAST(
                    %(open)s::VARCHAR AS INT8MULTIRANGE
                )
            )
    )
LIMIT 1
