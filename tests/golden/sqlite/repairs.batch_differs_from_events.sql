-- moved
UPDATE task_batches
SET kind=made.kind, name=made.name, on_failed=made.on_failed
FROM (/* checks.made-1 */) AS made
WHERE
    made.id = task_batches.id
    AND task_batches.completed_at IS NULL
    AND (
        made.kind IS NOT task_batches.kind
            OR made.on_failed IS NOT task_batches.on_failed
            OR made.name IS NOT task_batches.name
    )
RETURNING id
