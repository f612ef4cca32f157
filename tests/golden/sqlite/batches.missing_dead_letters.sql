SELECT task_batches.id
FROM task_batches
WHERE
    task_batches.completed_at IS NULL
    AND task_batches.on_failed = 'wait'
    AND task_batches.failed > 0
    AND task_batches.failed > (
        SELECT count(*) AS count_1
        FROM task_executions
        WHERE
            task_executions.pipeline_execution_id = task_batches.id
            AND task_executions.pipeline_execution_id != task_executions.id
            AND task_executions.status = 'Failed'
    )
ORDER BY task_batches.id
LIMIT :limit
OFFSET :param_1
