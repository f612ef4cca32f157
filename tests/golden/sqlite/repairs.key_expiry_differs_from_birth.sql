-- moved
UPDATE idempotency_keys
SET expires_at=(
    SELECT json_extract(birth.event_data, '$.unique_until') AS json_extract_1
    FROM execution_events AS birth
    JOIN task_executions ON task_executions.id = birth.task_execution_id
    WHERE
        birth.task_execution_id = idempotency_keys.task_execution_id
        AND birth.lease_token IS NULL
        AND birth.event_type = 'task_created'
        AND birth.event_data LIKE '%"idempotency_key"%'
        AND json_extract(birth.event_data, '$.idempotency_key') IS NOT NULL
        AND json_extract(birth.event_data, '$.idempotency_key') = idempotency_keys."key"
        AND task_executions.task_name = idempotency_keys.scope
)
WHERE EXISTS (/* checks.execution_events-4 */)
RETURNING task_execution_id AS id
