SELECT count(*) AS tasks
FROM task_executions
WHERE
    task_executions.id > :from_id
    AND task_executions.id < :to_id
    AND task_executions.completed_at < :before
    AND (
        task_executions.status = 'Completed'
            AND :prune_completed = :param_1
            OR task_executions.status = 'Failed'
            AND :prune_failed = :param_2
            OR task_executions.status = 'Cancelled'
            AND :prune_cancelled = :param_3
    )
    AND (
        task_executions.status = 'Failed'
            OR (
                SELECT task_batches.id
                FROM task_batches
                WHERE
                    task_batches.id = task_executions.pipeline_execution_id
                    AND (task_batches.completed_at IS NULL OR task_batches.completed_at >= :before)
            ) IS NULL
    )
