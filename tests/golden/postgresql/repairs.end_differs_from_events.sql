WITH moved AS (
    UPDATE task_executions
    SET completed_at=(/* repairs.execution_events-2: param_1 */)
    WHERE
        task_executions.status IN ('Cancelled', 'Completed', 'Failed')
        AND (/* repairs.execution_events-1: param_2 */) = task_executions.status
        AND task_executions.completed_at IS DISTINCT FROM (/* repairs.execution_events-2: param_1 */)
    RETURNING task_executions.id
)
SELECT moved.id
FROM moved
