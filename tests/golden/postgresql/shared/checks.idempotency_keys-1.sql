SELECT idempotency_keys.task_execution_id
FROM idempotency_keys
WHERE
    idempotency_keys.scope = task_executions.task_name
    AND idempotency_keys.key = (CAST(birth.event_data AS JSONB) ->> 'idempotency_key')
    AND (
        idempotency_keys.task_execution_id = task_executions.id
            OR (
                EXISTS (
                    SELECT other.task_execution_id
                    FROM execution_events AS other
                    WHERE
                        other.task_execution_id = idempotency_keys.task_execution_id
                        AND other.lease_token IS NULL
                        AND other.event_type = 'task_created'
                        AND other.event_data LIKE '%%"idempotency_key"%%'
                        AND (CAST(other.event_data AS JSONB) ->> 'idempotency_key') IS NOT NULL
                        AND (CAST(other.event_data AS JSONB) ->> 'idempotency_key') = (
                            CAST(birth.event_data AS JSONB) ->> 'idempotency_key'
                        )
                )
            )
    )
