DELETE FROM task_steps
WHERE
    task_steps.task_execution_id >= %(lower)s::UUID
    AND task_steps.task_execution_id < %(upper)s::UUID
    AND task_steps.task_execution_id != all(%(kept)s::UUID[])
