-- moved
UPDATE task_executions
SET completed_at=(/* repairs.execution_events-2: param_1, param_2 */)
WHERE
    task_executions.status IN ('Cancelled', 'Completed', 'Failed')
    AND (/* repairs.execution_events-1: param_3, param_4 */) = task_executions.status
    AND task_executions.completed_at IS NOT (/* repairs.execution_events-2: param_1, param_5 */)
RETURNING id
