WITH gone AS (
    DELETE FROM idempotency_keys
    WHERE EXISTS (/* checks.execution_events-3 */)
    RETURNING idempotency_keys.task_execution_id AS id
)
SELECT gone.id
FROM gone
