WITH holding AS (
    SELECT batch.id AS id, batch.lease_token AS lease_token, batch.ordinal AS ordinal
    FROM unnest(%(holding_id)s::UUID[], %(holding_lease_token)s::BIGINT[]) WITH ORDINALITY AS batch(
        id,
        lease_token,
        ordinal
    )
)
SELECT execution_events.task_execution_id AS id, execution_events.event_data, execution_events.created_at
FROM holding
JOIN execution_events ON execution_events.task_execution_id = holding.id
    AND execution_events.lease_token = holding.lease_token
WHERE
    execution_events.task_execution_id = any(array((SELECT holding.id FROM holding)))
    AND execution_events.event_type != 'task_claimed'
    AND execution_events.lease_token IS NOT NULL
    AND execution_events.event_type = 'task_released'
    AND (CAST(execution_events.event_data AS JSONB) ->> 'reason') = %(param_1)s::VARCHAR
    AND NOT (
        EXISTS (
            SELECT *
            FROM execution_events AS other
            WHERE
                other.task_execution_id = any(array((SELECT holding.id FROM holding)))
                AND other.task_execution_id = execution_events.task_execution_id
                AND other.lease_token IS NULL
                AND other.sequence_num > execution_events.sequence_num
        )
    )
