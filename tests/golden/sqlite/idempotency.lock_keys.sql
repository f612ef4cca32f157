-- locked
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS id
    FROM json_each(:given) AS given_rows
)
SELECT idempotency_keys.task_execution_id AS id
FROM idempotency_keys
WHERE idempotency_keys.task_execution_id IN (SELECT given.id FROM given)
ORDER BY idempotency_keys.scope, idempotency_keys."key"
