SELECT
    task_steps.task_execution_id,
    task_steps.name,
    task_steps.number,
    task_steps.lease_token,
    task_steps.result,
    task_steps.due_at,
    task_steps.created_at
FROM task_steps
WHERE task_steps.task_execution_id = %(task_id)s::UUID
ORDER BY task_steps.number, task_steps.name
