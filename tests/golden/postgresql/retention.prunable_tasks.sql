SELECT task_executions.id, task_executions.task_name, task_executions.status
FROM task_executions
WHERE
    task_executions.id > %(from_id)s::UUID
    AND task_executions.id < %(to_id)s::UUID
    AND task_executions.completed_at < %(before)s::TIMESTAMP WITH TIME ZONE
    AND (
        task_executions.status = 'Completed'
            AND %(prune_completed)s::INTEGER = %(param_1)s::INTEGER
            OR task_executions.status = 'Failed'
            AND %(prune_failed)s::INTEGER = %(param_2)s::INTEGER
            OR task_executions.status = 'Cancelled'
            AND %(prune_cancelled)s::INTEGER = %(param_3)s::INTEGER
    )
    AND (task_executions.status = 'Failed' OR (/* retention.task_batches-1 */) IS NULL)
ORDER BY task_executions.id
LIMIT %(limit)s::BIGINT
