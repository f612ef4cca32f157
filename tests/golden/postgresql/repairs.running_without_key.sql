WITH taken AS (
    INSERT INTO partition_claims (queue, partition_key, task_execution_id, held)
    SELECT
        task_executions.queue AS queue,
        task_executions.partition_key AS partition_key,
        task_executions.id AS id,
        false AS anon_1
    FROM task_executions
    WHERE
        task_executions.partition_key IS NOT NULL
        AND task_executions.status = 'Running'
        AND substr(task_executions.partition_key, 1, 12) != 'concurrency:'
        AND NOT (
            EXISTS (
                SELECT partition_claims.task_execution_id
                FROM partition_claims
                WHERE
                    partition_claims.task_execution_id = task_executions.id
                    AND partition_claims.queue = task_executions.queue
                    AND partition_claims.partition_key = task_executions.partition_key
            )
        )
    FOR UPDATE OF task_executions
    ON CONFLICT DO NOTHING
    RETURNING partition_claims.task_execution_id AS id
)
SELECT taken.id
FROM taken
