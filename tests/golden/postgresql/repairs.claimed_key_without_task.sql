WITH gone AS (
    DELETE FROM partition_claims
    WHERE NOT (EXISTS (/* checks.task_executions-2 */))
    RETURNING partition_claims.task_execution_id AS id, partition_claims.queue
)
SELECT gone.id, gone.queue
FROM gone
