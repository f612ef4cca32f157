WITH moved AS (
    UPDATE task_batches
    SET kind=made.kind, name=made.name, on_failed=made.on_failed
    FROM (/* checks.made-1 */) AS made
    WHERE
        made.id = task_batches.id
        AND task_batches.completed_at IS NULL
        AND (
            made.kind IS DISTINCT FROM task_batches.kind
                OR made.on_failed IS DISTINCT FROM task_batches.on_failed
                OR made.name IS DISTINCT FROM task_batches.name
        )
    RETURNING task_batches.id
)
SELECT moved.id
FROM moved
