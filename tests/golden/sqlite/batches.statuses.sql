SELECT task_executions.status, count(*) AS tasks
FROM task_executions
WHERE
    task_executions.pipeline_execution_id = :batch_id
    AND task_executions.pipeline_execution_id != task_executions.id
GROUP BY task_executions.status
