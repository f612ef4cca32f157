SELECT task_steps.task_execution_id AS id, task_steps.number, task_steps.due_at
FROM task_steps
WHERE
    task_steps.task_execution_id = %(task_id)s::UUID
    AND task_steps.name = %(name)s::VARCHAR
    AND task_steps.lease_token = %(lease_token)s::BIGINT
