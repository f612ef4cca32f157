-- gone
DELETE FROM idempotency_keys
WHERE EXISTS (/* checks.execution_events-3 */)
RETURNING task_execution_id AS id
