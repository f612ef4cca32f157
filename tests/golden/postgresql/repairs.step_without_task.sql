WITH gone AS (
    DELETE FROM task_steps
    WHERE NOT (
        EXISTS (
            SELECT task_executions.id
            FROM task_executions
            WHERE task_executions.id = task_steps.task_execution_id
        )
    )
    RETURNING task_steps.task_execution_id AS id
)
SELECT gone.id
FROM gone
