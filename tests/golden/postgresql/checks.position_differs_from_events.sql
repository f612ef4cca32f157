SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.partition_key IS NOT NULL
    AND task_executions.position != (/* checks.execution_events-1: param_1 */)
