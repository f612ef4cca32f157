WITH leased AS MATERIALIZED (
    SELECT
        task_executions.id AS id,
        task_executions.pipeline_execution_id AS batch_id,
        task_executions.cancel_requested_at AS cancel_requested_at
    FROM task_executions
    WHERE
        task_executions.id IN (SELECT task_leases.task_execution_id FROM task_leases)
        AND task_executions.status = 'Running'
)
SELECT
    task_batches.id,
    task_batches.runs_then,
    task_batches.on_failed,
    (
        task_batches.size - (
            CAST(task_batches.completed AS BIGINT) + task_batches.failed + task_batches.cancelled
        )
    ) - coalesce(running.running, 0) AS waiting,
    coalesce(running.unasked, 0) AS unasked,
    task_batches.failed
FROM task_batches
LEFT OUTER JOIN (
    SELECT
        leased.batch_id AS batch_id,
        count(*) AS running,
        sum(CASE WHEN (leased.cancel_requested_at IS NULL) THEN 1 ELSE 0 END) AS unasked
    FROM leased
    GROUP BY leased.batch_id
) AS running ON running.batch_id = task_batches.id
WHERE
    task_batches.completed_at IS NULL
    AND task_batches.cancel_requested_at IS NOT NULL
    AND (
        (
            task_batches.size - (
                CAST(task_batches.completed AS BIGINT) + task_batches.failed + task_batches.cancelled
            )
        ) - coalesce(running.running, 0) != 0
            OR coalesce(running.unasked, 0) != 0
            OR task_batches.failed > 0
            AND task_batches.on_failed = 'wait'
    )
ORDER BY task_batches.id
LIMIT :limit
OFFSET :param_1
