-- moved
UPDATE task_batches
SET
    stage=(
        SELECT count(*) AS count_1
        FROM task_executions
        WHERE
            task_executions.pipeline_execution_id = task_batches.id
            AND task_executions.pipeline_execution_id != task_executions.id
            AND task_executions.status IN ('Ready', 'Running', 'Completed', 'Failed', 'Cancelled')
            AND substr(task_executions.id, 13, 1) = '8'
    ),
    updated_at=:now
WHERE task_batches.completed_at IS NULL AND task_batches.id IN (/* repairs.task_batches-2 */)
RETURNING id
