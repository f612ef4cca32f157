SELECT task_batches.id
FROM task_batches
WHERE
    task_batches.id = task_executions.pipeline_execution_id
    AND (
        task_batches.completed_at IS NULL
            OR task_batches.completed_at >= %(before)s::TIMESTAMP WITH TIME ZONE
            OR (
                EXISTS (
                    SELECT follower.id
                    FROM task_executions AS follower
                    WHERE
                        follower.id = CAST(
                            translate(substr(CAST(task_batches.id AS TEXT), 1, 1), '89abcdef', '01234567') || substr(
                                CAST(
                                    CAST(
                                        substr(CAST(task_batches.id AS TEXT), 1, 32) || lpad(
                                            to_hex(task_batches.stage),
                                            4,
                                            '0'
                                        ) AS UUID
                                    ) AS TEXT
                                ),
                                2
                            ) AS UUID
                        )
                        AND follower.status IN ('Ready', 'Running', 'Failed')
                )
            )
    )
