SELECT task_batches.id
FROM task_batches
WHERE
    task_batches.id = %(batch_id)s::UUID
    AND task_batches.completed_at IS NULL
    AND task_batches.cancel_requested_at IS NULL
