-- moved
WITH unreadable AS MATERIALIZED (
    SELECT unreadable_rows."key" AS ordinal, unreadable_rows.value AS id
    FROM json_each(:unreadable) AS unreadable_rows
)
UPDATE task_batches
SET
    size=CASE
        WHEN (
            task_batches.size < (
                SELECT count(*) AS count_1
                FROM task_executions
                WHERE
                    task_executions.pipeline_execution_id = task_batches.id
                    AND task_executions.pipeline_execution_id != task_executions.id
                    AND task_executions.status IN ('Ready', 'Running', 'Completed', 'Failed', 'Cancelled')
            )
        ) THEN (
            SELECT count(*) AS count_1
            FROM task_executions
            WHERE
                task_executions.pipeline_execution_id = task_batches.id
                AND task_executions.pipeline_execution_id != task_executions.id
                AND task_executions.status IN ('Ready', 'Running', 'Completed', 'Failed', 'Cancelled')
        )
        ELSE task_batches.size
    END,
    completed=(
        SELECT count(*) AS count_2
        FROM task_executions
        WHERE
            task_executions.pipeline_execution_id = task_batches.id
            AND task_executions.pipeline_execution_id != task_executions.id
            AND task_executions.status IN ('Completed')
    ),
    failed=(
        SELECT count(*) AS count_3
        FROM task_executions
        WHERE
            task_executions.pipeline_execution_id = task_batches.id
            AND task_executions.pipeline_execution_id != task_executions.id
            AND task_executions.status IN ('Failed')
    ),
    cancelled=(
        (
            CASE
                WHEN (
                    task_batches.size < (
                        SELECT count(*) AS count_1
                        FROM task_executions
                        WHERE
                            task_executions.pipeline_execution_id = task_batches.id
                            AND task_executions.pipeline_execution_id != task_executions.id
                            AND task_executions.status IN (
                                'Ready',
                                'Running',
                                'Completed',
                                'Failed',
                                'Cancelled'
                            )
                    )
                ) THEN (
                    SELECT count(*) AS count_1
                    FROM task_executions
                    WHERE
                        task_executions.pipeline_execution_id = task_batches.id
                        AND task_executions.pipeline_execution_id != task_executions.id
                        AND task_executions.status IN ('Ready', 'Running', 'Completed', 'Failed', 'Cancelled')
                )
                ELSE task_batches.size
            END - (
                SELECT count(*) AS count_4
                FROM task_executions
                WHERE
                    task_executions.pipeline_execution_id = task_batches.id
                    AND task_executions.pipeline_execution_id != task_executions.id
                    AND task_executions.status IN ('Ready', 'Running', 'Failed')
            )
        ) - (
            SELECT count(*) AS count_2
            FROM task_executions
            WHERE
                task_executions.pipeline_execution_id = task_batches.id
                AND task_executions.pipeline_execution_id != task_executions.id
                AND task_executions.status IN ('Completed')
        )
    ),
    updated_at=:now
WHERE
    task_batches.completed_at IS NULL
    AND task_batches.closed = 1
    AND (task_batches.id NOT IN (SELECT unreadable.id FROM unreadable))
    AND task_batches.id IN (/* repairs.task_batches-1 */)
RETURNING id
