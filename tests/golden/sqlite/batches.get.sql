SELECT
    task_batches.id,
    task_batches.kind,
    task_batches.name,
    task_batches.on_failed,
    task_batches.size,
    task_batches.completed,
    task_batches.failed,
    task_batches.cancelled,
    task_batches.closed,
    task_batches.then_tasks,
    task_batches.stage,
    task_batches.runs_then,
    task_batches.cancel_requested_at,
    task_batches.created_at,
    task_batches.updated_at,
    task_batches.completed_at
FROM task_batches
WHERE task_batches.id = :batch_id
