SELECT task_batches.id
FROM task_batches
WHERE
    task_batches.id = task_executions.pipeline_execution_id
    AND (
        task_batches.completed_at IS NULL
            OR task_batches.completed_at >= :before
            OR (
                EXISTS (
                    SELECT follower.id
                    FROM task_executions AS follower
                    WHERE
                        follower.id = (
                            substr('01234567', instr('89abcdef', substr(task_batches.id, 1, 1)), 1) || substr(
                                substr(task_batches.id, 1, 28) || printf(:printf_1, task_batches.stage),
                                2
                            )
                        )
                        AND follower.status IN ('Ready', 'Running', 'Failed')
                )
            )
    )
