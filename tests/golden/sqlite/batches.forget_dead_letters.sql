-- counted
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS id
    FROM json_each(:given) AS given_rows
)
UPDATE task_batches
SET
    failed=(
        SELECT count(*) AS count_1
        FROM task_executions
        WHERE
            task_executions.pipeline_execution_id = task_batches.id
            AND task_executions.pipeline_execution_id != task_executions.id
            AND task_executions.status = 'Failed'
    ),
    cancelled=(
        (task_batches.cancelled + task_batches.failed) - (
            SELECT count(*) AS count_1
            FROM task_executions
            WHERE
                task_executions.pipeline_execution_id = task_batches.id
                AND task_executions.pipeline_execution_id != task_executions.id
                AND task_executions.status = 'Failed'
        )
    ),
    updated_at=:now
WHERE
    task_batches.id IN (SELECT given.id FROM given)
    AND task_batches.completed_at IS NULL
    AND task_batches.failed > (
        SELECT count(*) AS count_1
        FROM task_executions
        WHERE
            task_executions.pipeline_execution_id = task_batches.id
            AND task_executions.pipeline_execution_id != task_executions.id
            AND task_executions.status = 'Failed'
    )
RETURNING id
