SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.status = 'Ready'
    AND NOT (
        EXISTS (
            SELECT task_outbox.id
            FROM task_outbox
            WHERE task_outbox.task_execution_id = task_executions.id
        )
    )
