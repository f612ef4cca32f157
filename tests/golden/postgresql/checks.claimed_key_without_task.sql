SELECT partition_claims.task_execution_id AS id
FROM partition_claims
WHERE NOT (EXISTS (/* checks.task_executions-2 */))
