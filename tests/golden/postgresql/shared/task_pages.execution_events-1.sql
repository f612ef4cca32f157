SELECT execution_events.sequence_num
FROM execution_events
WHERE
    execution_events.task_execution_id = looked.id
    AND execution_events.lease_token IS NULL
    AND execution_events.event_type IN ('task_created', 'task_requeued', 'task_retry_scheduled')
    AND (
        execution_events.sequence_num > %(head)s::BIGINT
            OR (
                CAST(CAST(execution_events.xact_id AS TEXT) AS BIGINT) <@ CAST(
                    %(open)s::VARCHAR AS INT8MULTIRANGE
                )
            )
    )
LIMIT 1
