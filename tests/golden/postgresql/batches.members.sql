SELECT task_executions.id, task_executions.status
FROM task_executions
WHERE
    task_executions.pipeline_execution_id = %(batch_id)s::UUID
    AND task_executions.pipeline_execution_id != task_executions.id
    AND task_executions.id > %(after)s::UUID
ORDER BY task_executions.id
LIMIT %(limit)s::BIGINT
