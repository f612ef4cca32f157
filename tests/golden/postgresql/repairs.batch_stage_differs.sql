WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    moved AS (
        UPDATE task_batches
        SET
            stage=(
                SELECT count(*) AS count_1
                FROM task_executions
                WHERE
                    task_executions.pipeline_execution_id = task_batches.id
                    AND task_executions.pipeline_execution_id != task_executions.id
                    AND task_executions.status IN ('Ready', 'Running', 'Completed', 'Failed', 'Cancelled')
                    AND substr(replace(CAST(task_executions.id AS TEXT), '-', ''), 13, 1) = '8'
            ),
            updated_at=(SELECT clock.now FROM clock)
        WHERE task_batches.completed_at IS NULL AND task_batches.id IN (/* repairs.task_batches-2 */)
        RETURNING task_batches.id
    )
SELECT moved.id
FROM moved
