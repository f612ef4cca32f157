SELECT
    task_batches.id AS id,
    count(CASE WHEN 1 THEN task_executions.id END) AS present,
    count(CASE WHEN (task_executions.status IN ('Ready', 'Running')) THEN task_executions.id END) AS unended,
    count(CASE WHEN (task_executions.status = 'Completed') THEN task_executions.id END) AS completed,
    count(CASE WHEN (task_executions.status = 'Failed') THEN task_executions.id END) AS failed,
    count(CASE WHEN (task_executions.status = 'Cancelled') THEN task_executions.id END) AS cancelled,
    count(CASE WHEN (substr(task_executions.id, 13, 1) = '8') THEN task_executions.id END) AS following
FROM task_batches
LEFT OUTER JOIN task_executions ON task_executions.pipeline_execution_id = task_batches.id
    AND task_executions.pipeline_execution_id != task_executions.id
WHERE task_batches.completed_at IS NULL
GROUP BY task_batches.id
