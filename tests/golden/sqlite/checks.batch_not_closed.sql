SELECT found.id, found.batch_not_closed, found.batch_completed_early
FROM (
    SELECT
        task_batches.id AS id,
        coalesce(task_batches.completed_at IS NULL AND task_batches.closed = 0, 0) AS batch_not_closed,
        coalesce(
            task_batches.completed_at IS NOT NULL
                AND task_batches.closed = 1
                AND ((task_batches.size - task_batches.completed) - task_batches.cancelled) - CASE
                    WHEN (task_batches.on_failed = 'wait') THEN 0
                    ELSE task_batches.failed
                END > 0,
            0
        ) AS batch_completed_early
    FROM task_batches
) AS found
WHERE found.batch_not_closed = 1 OR found.batch_completed_early = 1
