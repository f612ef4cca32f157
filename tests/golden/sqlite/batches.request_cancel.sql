UPDATE task_batches
SET
    closed=1,
    runs_then=(task_batches.runs_then = 1 AND :runs_then = 1),
    cancel_requested_at=coalesce(task_batches.cancel_requested_at, :now),
    updated_at=:now
WHERE task_batches.id = :batch_id AND task_batches.completed_at IS NULL
RETURNING id, on_failed
