SELECT dead_letters.task_execution_id AS id
FROM dead_letters
WHERE NOT (
    EXISTS (
        SELECT task_executions.id
        FROM task_executions
        WHERE task_executions.id = dead_letters.task_execution_id AND task_executions.status = 'Failed'
    )
)
