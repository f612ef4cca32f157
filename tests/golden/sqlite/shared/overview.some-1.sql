SELECT
    held.queue AS queue,
    held.partition_key AS partition_key,
    held.task_execution_id AS task_execution_id,
    held.held AS held
FROM (
    SELECT
        partition_claims.queue AS queue,
        partition_claims.partition_key AS partition_key,
        partition_claims.task_execution_id AS task_execution_id,
        partition_claims.held AS held
    FROM partition_claims
    WHERE partition_claims.held = 1
    LIMIT 1000
    OFFSET :param_1
) AS held
WHERE (
    SELECT 1
    FROM task_outbox AS entry
    WHERE entry.queue = held.queue AND entry.partition_key = held.partition_key
    LIMIT 1
    OFFSET :param_2
) IS NOT NULL
LIMIT 100
OFFSET :param_3
