SELECT task_executions.id, task_executions.status
FROM task_executions
WHERE
    task_executions.pipeline_execution_id = :batch_id
    AND task_executions.pipeline_execution_id != task_executions.id
    AND task_executions.id > :after
    AND (
        task_executions.status = 'Ready'
            OR task_executions.status = 'Running'
            AND (task_executions.cancel_requested_at IS NULL OR :force = 1)
            OR task_executions.status = 'Failed'
            AND :dead_letters = 1
    )
ORDER BY task_executions.id
LIMIT :limit
OFFSET :param_1
