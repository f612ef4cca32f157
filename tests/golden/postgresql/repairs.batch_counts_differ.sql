WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    counted AS (
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
                                AND task_executions.status IN (
                                    'Ready',
                                    'Running',
                                    'Completed',
                                    'Failed',
                                    'Cancelled'
                                )
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
            updated_at=(SELECT clock.now FROM clock)
        WHERE
            task_batches.completed_at IS NULL
            AND task_batches.closed
            AND task_batches.id IN (
                SELECT counted.id
                FROM (
                    SELECT
                        task_batches.id AS id,
                        count(CASE WHEN true THEN task_executions.id END) AS present,
                        count(
                            CASE
                                WHEN (task_executions.status IN ('Ready', 'Running')) THEN task_executions.id
                            END
                        ) AS unended,
                        count(CASE WHEN (task_executions.status = 'Completed') THEN task_executions.id END) AS completed,
                        count(CASE WHEN (task_executions.status = 'Failed') THEN task_executions.id END) AS failed,
                        count(CASE WHEN (task_executions.status = 'Cancelled') THEN task_executions.id END) AS cancelled,
                        count(
                            CASE
                                WHEN (substr(replace(CAST(task_executions.id AS TEXT), '-', ''), 13, 1) = '8') THEN task_executions.id
                            END
                        ) AS following
                    FROM task_batches
                    LEFT OUTER JOIN task_executions ON task_executions.pipeline_execution_id = task_batches.id
                        AND task_executions.pipeline_execution_id != task_executions.id
                    WHERE task_batches.completed_at IS NULL
                    GROUP BY task_batches.id
                ) AS counted
                JOIN task_batches ON counted.id = task_batches.id
                WHERE
                    task_batches.closed
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
        RETURNING task_batches.id
    )
SELECT counted.id
FROM counted
