SELECT idempotency_keys.task_execution_id AS id
FROM idempotency_keys
WHERE NOT (
    EXISTS (
        SELECT task_executions.id
        FROM task_executions
        WHERE task_executions.id = idempotency_keys.task_execution_id
    )
)
