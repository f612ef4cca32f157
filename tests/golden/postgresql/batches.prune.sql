WITH
    doomed AS MATERIALIZED (
        SELECT task_batches.id AS id
        FROM task_batches
        WHERE
            task_batches.completed_at < %(older)s::TIMESTAMP WITH TIME ZONE
            AND NOT (
                EXISTS (
                    SELECT task_executions.id
                    FROM task_executions
                    WHERE
                        task_executions.pipeline_execution_id = task_batches.id
                        AND task_executions.pipeline_execution_id != task_executions.id
                )
            )
        ORDER BY task_batches.id
        LIMIT %(limit)s::BIGINT
        FOR UPDATE SKIP LOCKED
    ),
    gone AS (
        DELETE FROM task_batches
        WHERE task_batches.id = any(array((SELECT doomed.id FROM doomed)))
        RETURNING task_batches.id
    )
SELECT gone.id
FROM gone
