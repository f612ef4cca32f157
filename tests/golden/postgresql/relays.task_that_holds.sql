SELECT task_executions.pipeline_execution_id AS event_id, task_executions.status, task_executions.last_error
FROM task_executions
WHERE task_executions.id = %(task_id)s::UUID
