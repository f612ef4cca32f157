-- gone
DELETE FROM partition_claims
WHERE NOT (EXISTS (/* checks.task_executions-2 */))
RETURNING task_execution_id AS id, queue
