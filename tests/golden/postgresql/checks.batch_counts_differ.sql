WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
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
                ),
            false
        ) AS batch_counts_differ,
        coalesce(task_batches.size = counted.present AND task_batches.stage != counted.following, false) AS batch_stage_differs,
        coalesce(NOT task_batches.runs_then AND task_batches.cancel_requested_at IS NULL, false) AS batch_cancel_contradicts,
        coalesce(
            task_batches.updated_at > CASE
                WHEN (
                    (
                        SELECT newest.created_at
                        FROM execution_events AS newest
                        ORDER BY newest.sequence_num DESC
                        LIMIT %(param_1)s::INTEGER
                    ) > (SELECT clock.now FROM clock)
                ) THEN (
                    SELECT newest.created_at
                    FROM execution_events AS newest
                    ORDER BY newest.sequence_num DESC
                    LIMIT %(param_1)s::INTEGER
                )
                ELSE (SELECT clock.now FROM clock)
            END + 86400.0 * interval '1 second',
            false
        ) AS batch_ahead_of_time
    FROM task_batches
    JOIN (/* checks.counted-1 */) AS counted ON counted.id = task_batches.id
) AS found
WHERE
    found.batch_counts_differ
    OR found.batch_stage_differs
    OR found.batch_cancel_contradicts
    OR found.batch_ahead_of_time
