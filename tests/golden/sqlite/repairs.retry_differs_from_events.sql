-- moved
UPDATE task_executions
SET retry_at=(/* repairs.execution_events-3: param_1, param_2 */)
WHERE
    (/* repairs.execution_events-1: param_3, param_4 */) = task_executions.status
    AND task_executions.retry_at IS NOT (/* repairs.execution_events-3: param_1, param_5 */)
RETURNING id
