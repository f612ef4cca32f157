SELECT task_batches.id
FROM task_batches
WHERE task_batches.completed_at IS NULL AND NOT task_batches.closed
