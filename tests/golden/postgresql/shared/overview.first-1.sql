SELECT
    task_batches.id AS id,
    task_batches.kind AS kind,
    task_batches.name AS name,
    task_batches.on_failed AS on_failed,
    task_batches.size AS size,
    task_batches.completed AS completed,
    task_batches.failed AS failed,
    task_batches.cancelled AS cancelled,
    task_batches.closed AS closed,
    task_batches.then_tasks AS then_tasks,
    task_batches.stage AS stage,
    task_batches.runs_then AS runs_then,
    task_batches.cancel_requested_at AS cancel_requested_at,
    task_batches.created_at AS created_at,
    task_batches.updated_at AS updated_at,
    task_batches.completed_at AS completed_at
FROM task_batches
WHERE task_batches.completed_at IS NULL
ORDER BY task_batches.id
LIMIT %(most)s::BIGINT
