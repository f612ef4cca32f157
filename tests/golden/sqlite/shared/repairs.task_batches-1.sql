SELECT counted.id
FROM (/* checks.counted-1 */) AS counted
JOIN task_batches ON counted.id = task_batches.id
WHERE
    task_batches.closed = 1
    AND (
        ((task_batches.size - task_batches.completed) - task_batches.cancelled) - CASE WHEN (
            task_batches.on_failed = 'wait'
        ) THEN 0 ELSE task_batches.failed END <= 0
            OR ((task_batches.size - task_batches.completed) - task_batches.cancelled) - CASE
                WHEN (task_batches.on_failed = 'wait') THEN 0
                ELSE task_batches.failed
            END != counted.unended + CASE
                WHEN (task_batches.on_failed = 'wait') THEN counted.failed
                ELSE 0
            END
            OR task_batches.completed < counted.completed
            OR task_batches.failed < counted.failed
            OR task_batches.cancelled < counted.cancelled
    )
