WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    given AS (
        SELECT batch.id AS id, batch.ordinal AS ordinal
        FROM unnest(%(given_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
    ),
    counted AS (
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
            updated_at=(SELECT clock.now FROM clock)
        WHERE
            task_batches.id = any(array((SELECT given.id FROM given)))
            AND task_batches.completed_at IS NULL
            AND task_batches.failed > (
                SELECT count(*) AS count_1
                FROM task_executions
                WHERE
                    task_executions.pipeline_execution_id = task_batches.id
                    AND task_executions.pipeline_execution_id != task_executions.id
                    AND task_executions.status = 'Failed'
            )
        RETURNING task_batches.id
    )
SELECT counted.id
FROM counted
