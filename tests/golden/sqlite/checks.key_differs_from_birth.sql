SELECT idempotency_keys.task_execution_id AS id
FROM idempotency_keys
WHERE EXISTS (/* checks.execution_events-3 */)
