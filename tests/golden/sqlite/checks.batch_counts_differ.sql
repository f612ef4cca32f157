SELECT
    found.id,
    found.batch_counts_differ,
    found.batch_stage_differs,
    found.batch_cancel_contradicts,
    found.batch_ahead_of_time
FROM (
    SELECT
        task_batches.id AS id,
        coalesce(
            task_batches.closed = 1
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
                ),
            0
        ) AS batch_counts_differ,
        coalesce(task_batches.size = counted.present AND task_batches.stage != counted.following, 0) AS batch_stage_differs,
        coalesce(task_batches.runs_then = 0 AND task_batches.cancel_requested_at IS NULL, 0) AS batch_cancel_contradicts,
        coalesce(
            task_batches.updated_at > (
                strftime(
                    :strftime_1,
                    (
                        CAST(
                            strftime(
                                :strftime_2,
                                substr(
                                    CASE
                                        WHEN (
                                            (
                                                SELECT newest.created_at
                                                FROM execution_events AS newest
                                                ORDER BY newest.sequence_num DESC
                                                LIMIT :param_1
                                                OFFSET :param_2
                                            ) > :now
                                        ) THEN (
                                            SELECT newest.created_at
                                            FROM execution_events AS newest
                                            ORDER BY newest.sequence_num DESC
                                            LIMIT :param_1
                                            OFFSET :param_3
                                        )
                                        ELSE :now
                                    END,
                                    :substr_1,
                                    :substr_2
                                )
                            ) AS INTEGER
                        ) * :param_4 + CAST(
                            substr(
                                CASE
                                    WHEN (
                                        (
                                            SELECT newest.created_at
                                            FROM execution_events AS newest
                                            ORDER BY newest.sequence_num DESC
                                            LIMIT :param_1
                                            OFFSET :param_5
                                        ) > :now
                                    ) THEN (
                                        SELECT newest.created_at
                                        FROM execution_events AS newest
                                        ORDER BY newest.sequence_num DESC
                                        LIMIT :param_1
                                        OFFSET :param_6
                                    )
                                    ELSE :now
                                END,
                                :substr_3,
                                :substr_4
                            ) AS INTEGER
                        ) + CAST(round(86400.0 * :param_7) AS INTEGER)
                    ) / 1000000,
                    :strftime_3
                ) || printf(
                    :printf_1,
                    (
                        CAST(
                            strftime(
                                :strftime_2,
                                substr(
                                    CASE
                                        WHEN (
                                            (
                                                SELECT newest.created_at
                                                FROM execution_events AS newest
                                                ORDER BY newest.sequence_num DESC
                                                LIMIT :param_1
                                                OFFSET :param_8
                                            ) > :now
                                        ) THEN (
                                            SELECT newest.created_at
                                            FROM execution_events AS newest
                                            ORDER BY newest.sequence_num DESC
                                            LIMIT :param_1
                                            OFFSET :param_9
                                        )
                                        ELSE :now
                                    END,
                                    :substr_1,
                                    :substr_2
                                )
                            ) AS INTEGER
                        ) * :param_4 + CAST(
                            substr(
                                CASE
                                    WHEN (
                                        (
                                            SELECT newest.created_at
                                            FROM execution_events AS newest
                                            ORDER BY newest.sequence_num DESC
                                            LIMIT :param_1
                                            OFFSET :param_10
                                        ) > :now
                                    ) THEN (
                                        SELECT newest.created_at
                                        FROM execution_events AS newest
                                        ORDER BY newest.sequence_num DESC
                                        LIMIT :param_1
                                        OFFSET :param_11
                                    )
                                    ELSE :now
                                END,
                                :substr_3,
                                :substr_4
                            ) AS INTEGER
                        ) + CAST(round(86400.0 * :param_7) AS INTEGER)
                    ) % 1000000
                )
            ),
            0
        ) AS batch_ahead_of_time
    FROM task_batches
    JOIN (/* checks.counted-1 */) AS counted ON counted.id = task_batches.id
) AS found
WHERE
    found.batch_counts_differ = 1
    OR found.batch_stage_differs = 1
    OR found.batch_cancel_contradicts = 1
    OR found.batch_ahead_of_time = 1
