SELECT
    held.queue,
    held.partition_key,
    held.task_execution_id AS dead_letter,
    held.failed_at,
    (
        SELECT count(*) AS count_1
        FROM (
            SELECT 1 AS one
            FROM task_outbox AS entry
            WHERE entry.queue = held.queue AND entry.partition_key = held.partition_key
            LIMIT %(most)s::BIGINT
        ) AS waiting
    ) AS waiting
FROM (
    SELECT
        partition_claims.queue AS queue,
        partition_claims.partition_key AS partition_key,
        partition_claims.task_execution_id AS task_execution_id,
        dead_letters.failed_at AS failed_at
    FROM partition_claims
    JOIN dead_letters ON dead_letters.task_execution_id = partition_claims.task_execution_id
    WHERE partition_claims.queue = %(queue)s::VARCHAR AND partition_claims.held
    ORDER BY dead_letters.failed_at, partition_claims.partition_key
    LIMIT %(limit)s::BIGINT
) AS held
ORDER BY held.failed_at, held.partition_key
