SELECT task_batches.id
FROM task_batches
WHERE task_batches.completed_at IS NULL AND task_batches.closed = 0
