WITH moved AS (
    UPDATE task_leases
    SET queue=(
        SELECT task_executions.queue
        FROM task_executions
        WHERE task_executions.id = task_leases.task_execution_id
    )
    WHERE EXISTS (
        SELECT task_executions.id
        FROM task_executions
        WHERE
            task_executions.id = task_leases.task_execution_id
            AND task_executions.queue != task_leases.queue
    )
    RETURNING task_leases.task_execution_id AS id, task_leases.queue
)
SELECT moved.id, moved.queue
FROM moved
