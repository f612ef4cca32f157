SELECT
    task_executions.id,
    task_executions.task_name,
    task_executions.topic,
    task_executions.status,
    task_executions.last_error
FROM task_executions
WHERE
    task_executions.pipeline_execution_id = %(event_id)s::UUID
    AND task_executions.id != %(event_id)s::UUID
    AND task_executions.topic IS NOT NULL
ORDER BY task_executions.id
