SELECT birth.task_execution_id
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
    AND CAST((CAST(birth.event_data AS JSONB) ->> 'unique_until') AS TIMESTAMP WITH TIME ZONE) IS DISTINCT FROM idempotency_keys.expires_at
    AND NOT (idempotency_keys.until_finished AND idempotency_keys.expires_at IS NULL)
