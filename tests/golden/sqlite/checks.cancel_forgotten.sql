SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.status = 'Running'
    AND task_executions.cancel_requested_at IS NULL
    AND (/* checks.execution_events-5: max_1 */) IS NOT NULL
