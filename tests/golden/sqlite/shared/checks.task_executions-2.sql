SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.id = partition_claims.task_execution_id
    AND task_executions.queue = partition_claims.queue
    AND task_executions.partition_key = partition_claims.partition_key
    AND (
        task_executions.partition_key IS NOT NULL
            AND task_executions.status = 'Running'
            AND partition_claims.held = 0
            OR task_executions.partition_key IS NOT NULL
            AND task_executions.status = 'Failed'
            AND task_executions.on_dead_letter = 'hold'
            AND partition_claims.held = 1
    )
