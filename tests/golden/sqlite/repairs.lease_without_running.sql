-- gone
DELETE FROM task_leases
WHERE NOT (
    EXISTS (
        SELECT task_executions.id
        FROM task_executions
        WHERE task_executions.id = task_leases.task_execution_id AND task_executions.status = 'Running'
    )
)
RETURNING task_execution_id AS id
