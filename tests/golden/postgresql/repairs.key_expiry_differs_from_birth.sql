WITH moved AS (
    UPDATE idempotency_keys
    SET expires_at=(
        SELECT CAST(CAST(birth.event_data AS JSONB) ->> 'unique_until' AS TIMESTAMP WITH TIME ZONE) AS anon_1
        FROM execution_events AS birth
        JOIN task_executions ON task_executions.id = birth.task_execution_id
        WHERE
            birth.task_execution_id = idempotency_keys.task_execution_id
            AND birth.lease_token IS NULL
            AND birth.event_type = 'task_created'
            AND birth.event_data LIKE '%%"idempotency_key"%%'
            AND (CAST(birth.event_data AS JSONB) ->> 'idempotency_key') IS NOT NULL
            AND (CAST(birth.event_data AS JSONB) ->> 'idempotency_key') = idempotency_keys.key
            AND task_executions.task_name = idempotency_keys.scope
    )
    WHERE EXISTS (/* checks.execution_events-4 */)
    RETURNING idempotency_keys.task_execution_id AS id
)
SELECT moved.id
FROM moved
