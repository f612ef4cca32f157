WITH moved AS (
    UPDATE task_executions
    SET cancel_requested_at=(/* checks.execution_events-5: max_1 */)
    WHERE
        task_executions.status = 'Running'
        AND task_executions.cancel_requested_at IS NULL
        AND (/* checks.execution_events-5: max_1 */) IS NOT NULL
    RETURNING task_executions.id
)
SELECT moved.id
FROM moved
