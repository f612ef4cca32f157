SELECT idempotency_keys.task_execution_id AS id
FROM idempotency_keys
WHERE idempotency_keys.scope = %(task_name)s::VARCHAR AND idempotency_keys.key = %(idempotency_key)s::VARCHAR
