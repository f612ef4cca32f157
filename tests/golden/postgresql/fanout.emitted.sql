SELECT task_executions.task_name, task_executions.id
FROM task_executions
WHERE
    task_executions.pipeline_execution_id = %(pipeline_execution_id)s::UUID
    AND task_executions.pipeline_execution_id != task_executions.id
