WITH tasks AS (
    SELECT batch.id AS id, batch.ordinal AS ordinal
    FROM unnest(%(tasks_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
)
SELECT
    task_executions.id,
    task_executions.task_name,
    task_executions.status,
    task_executions.attempt,
    task_executions.last_error,
    task_executions.result
FROM task_executions
WHERE
    task_executions.id = any(array((SELECT tasks.id FROM tasks)))
    AND (%(everything)s OR task_executions.status IN ('Cancelled', 'Completed', 'Failed'))
