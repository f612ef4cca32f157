SELECT task_batches.id
FROM task_batches
WHERE task_batches.id IN (
    SELECT counted.id
    FROM (
        SELECT
            task_batches.id AS id,
            count(CASE WHEN 1 THEN task_executions.id END) AS present,
            count(CASE WHEN (task_executions.status IN ('Ready', 'Running')) THEN task_executions.id END) AS unended,
            count(CASE WHEN (task_executions.status = 'Completed') THEN task_executions.id END) AS completed,
            count(CASE WHEN (task_executions.status = 'Failed') THEN task_executions.id END) AS failed,
            count(CASE WHEN (task_executions.status = 'Cancelled') THEN task_executions.id END) AS cancelled,
            count(CASE WHEN (substr(task_executions.id, 13, 1) = '8') THEN task_executions.id END) AS following
        FROM task_batches
        LEFT OUTER JOIN task_executions ON task_executions.pipeline_execution_id = task_batches.id
            AND task_executions.pipeline_execution_id != task_executions.id
        WHERE task_batches.completed_at IS NULL
        GROUP BY task_batches.id
    ) AS counted
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
)
ORDER BY task_batches.id
