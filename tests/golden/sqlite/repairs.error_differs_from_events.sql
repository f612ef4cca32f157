-- moved
UPDATE task_executions
SET last_error=(/* repairs.execution_events-4: param_1, param_2 */)
WHERE task_executions.last_error IS NOT (/* repairs.execution_events-4: param_1, param_3 */)
RETURNING id
