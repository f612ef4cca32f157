SELECT task_batches.id, task_batches.runs_then, task_batches.on_failed
FROM task_batches
WHERE task_batches.completed_at IS NULL AND task_batches.cancel_requested_at IS NOT NULL
ORDER BY task_batches.id
LIMIT :limit
OFFSET :param_1
