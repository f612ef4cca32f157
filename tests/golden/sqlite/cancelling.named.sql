WITH chosen AS MATERIALIZED (
    SELECT chosen_rows."key" AS ordinal, chosen_rows.value AS id
    FROM json_each(:chosen) AS chosen_rows
)
SELECT
    task_executions.task_name,
    task_executions.queue,
    task_executions.cancel_requested_at IS NOT NULL AS was_asked,
    task_executions.retry_at
FROM task_executions
WHERE task_executions.id IN (SELECT chosen.id FROM chosen)
