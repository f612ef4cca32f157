-- taken
INSERT INTO partition_claims (queue, partition_key, task_execution_id, held)
SELECT task_executions.queue, task_executions.partition_key, task_executions.id, 1 AS anon_1
FROM task_executions
WHERE
    task_executions.partition_key IS NOT NULL
    AND task_executions.status = 'Failed'
    AND task_executions.on_dead_letter = 'hold'
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
ON CONFLICT DO NOTHING
RETURNING task_execution_id AS id
