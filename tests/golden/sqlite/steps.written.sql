SELECT task_steps.task_execution_id AS id, task_steps.number, task_steps.due_at
FROM task_steps
WHERE
    task_steps.task_execution_id = :task_id
    AND task_steps.name = :name
    AND task_steps.lease_token = :lease_token
