SELECT found.id, found.key_differs_from_birth, found.key_expiry_differs_from_birth
FROM (
    SELECT
        idempotency_keys.task_execution_id AS id,
        coalesce(EXISTS (/* checks.execution_events-3 */), false) AS key_differs_from_birth,
        coalesce(EXISTS (/* checks.execution_events-4 */), false) AS key_expiry_differs_from_birth
    FROM idempotency_keys
) AS found
WHERE found.key_differs_from_birth OR found.key_expiry_differs_from_birth
