WITH chosen AS (
    SELECT batch.id AS id, batch.ordinal AS ordinal
    FROM unnest(%(chosen_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
)
SELECT
    task_executions.task_name,
    task_executions.queue,
    task_executions.cancel_requested_at IS NOT NULL AS was_asked,
    task_executions.retry_at
FROM task_executions
WHERE task_executions.id = any(array((SELECT chosen.id FROM chosen)))
