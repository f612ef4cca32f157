SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.pipeline_execution_id = %(batch_id)s::UUID
    AND task_executions.pipeline_execution_id != task_executions.id
    AND task_executions.status != 'Completed'
ORDER BY CASE
    WHEN (task_executions.status = 'Failed') THEN 0
    WHEN (task_executions.status = 'Cancelled') THEN 1
    WHEN (task_executions.status = 'Running') THEN 2
    WHEN (task_executions.status = 'Ready') THEN 3
END, task_executions.id
LIMIT %(limit)s::BIGINT
