SELECT
    partition_claims.queue AS queue,
    partition_claims.partition_key AS partition_key,
    partition_claims.task_execution_id AS task_execution_id,
    dead_letters.failed_at AS failed_at
FROM partition_claims
JOIN dead_letters ON dead_letters.task_execution_id = partition_claims.task_execution_id
WHERE partition_claims.queue = :queue AND partition_claims.held = 1
ORDER BY dead_letters.failed_at, partition_claims.partition_key
LIMIT :limit
OFFSET :param_1
