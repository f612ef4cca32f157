SELECT task_outbox.task_execution_id AS id
FROM task_outbox
WHERE NOT (
    EXISTS (
        SELECT task_executions.id
        FROM task_executions
        WHERE task_executions.id = task_outbox.task_execution_id AND task_executions.status = 'Ready'
    )
)
