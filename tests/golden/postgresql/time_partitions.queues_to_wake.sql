SELECT DISTINCT partition_claims.queue
FROM partition_claims
WHERE
    partition_claims.held
    AND partition_claims.task_execution_id >= %(lower)s::UUID
    AND partition_claims.task_execution_id < %(upper)s::UUID
    AND partition_claims.task_execution_id != all(%(kept)s::UUID[])
