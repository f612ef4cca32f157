SELECT task_executions.id, task_executions.task_name, task_executions.status
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
    AND (task_executions.status = 'Failed' OR (/* retention.task_batches-1: printf_1 */) IS NULL)
ORDER BY task_executions.id
LIMIT :limit
OFFSET :param_4
