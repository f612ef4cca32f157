SELECT partition_claims.task_execution_id, partition_claims.held
FROM partition_claims
WHERE
    partition_claims.queue = %(queue)s::VARCHAR
    AND partition_claims.partition_key = %(partition_key)s::VARCHAR
