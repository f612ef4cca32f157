SELECT task_batches.id
FROM task_batches
JOIN (/* checks.made-1 */) AS made ON made.id = task_batches.id
    AND task_batches.completed_at IS NULL
    AND (
        made.kind IS DISTINCT FROM task_batches.kind
            OR made.on_failed IS DISTINCT FROM task_batches.on_failed
            OR made.name IS DISTINCT FROM task_batches.name
    )
