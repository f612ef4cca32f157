SELECT task_batches.id
FROM task_batches
WHERE
    task_batches.completed_at IS NULL
    AND task_batches.closed = 1
    AND (
        ((task_batches.size - task_batches.completed) - task_batches.cancelled) - CASE WHEN (
            task_batches.on_failed = 'wait'
        ) THEN 0 ELSE task_batches.failed END <= 0
            OR ((task_batches.size - task_batches.completed) - task_batches.cancelled) - CASE
                WHEN (task_batches.on_failed = 'wait') THEN 0
                ELSE task_batches.failed
            END != CASE
                WHEN (task_batches.on_failed = 'wait') THEN (
                    SELECT count(*) AS count_1
                    FROM task_executions
                    WHERE
                        task_executions.pipeline_execution_id = task_batches.id
                        AND task_executions.pipeline_execution_id != task_executions.id
                        AND task_executions.status IN ('Ready', 'Running', 'Failed')
                )
                ELSE (
                    SELECT count(*) AS count_2
                    FROM task_executions
                    WHERE
                        task_executions.pipeline_execution_id = task_batches.id
                        AND task_executions.pipeline_execution_id != task_executions.id
                        AND task_executions.status IN ('Ready', 'Running')
                )
            END
    )
ORDER BY task_batches.id
