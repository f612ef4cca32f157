WITH holding AS MATERIALIZED (
    SELECT
        holding_rows."key" AS ordinal,
        json_extract(holding_rows.value, '$[0]') AS id,
        json_extract(holding_rows.value, '$[1]') AS lease_token
    FROM json_each(:holding) AS holding_rows
)
SELECT execution_events.task_execution_id AS id, execution_events.event_data, execution_events.created_at
FROM holding
JOIN execution_events ON execution_events.task_execution_id = holding.id
    AND execution_events.lease_token = holding.lease_token
WHERE
    execution_events.task_execution_id IN (SELECT holding.id FROM holding)
    AND execution_events.event_type != 'task_claimed'
    AND execution_events.lease_token IS NOT NULL
    AND execution_events.event_type = 'task_released'
    AND json_extract(execution_events.event_data, '$.reason') = :json_extract_1
    AND NOT (
        EXISTS (
            SELECT *
            FROM execution_events AS other
            WHERE
                other.task_execution_id IN (SELECT holding.id FROM holding)
                AND other.task_execution_id = execution_events.task_execution_id
                AND other.lease_token IS NULL
                AND other.sequence_num > execution_events.sequence_num
        )
    )
