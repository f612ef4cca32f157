SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.status = 'Failed'
    AND NOT (
        EXISTS (
            SELECT dead_letters.task_execution_id
            FROM dead_letters
            WHERE dead_letters.task_execution_id = task_executions.id
        )
    )
