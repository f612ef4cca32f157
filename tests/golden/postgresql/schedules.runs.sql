WITH tasks AS (
    SELECT batch.id AS id, batch.ordinal AS ordinal
    FROM unnest(%(tasks_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
)
SELECT task_executions.id, task_executions.status, task_executions.started_at, task_executions.completed_at
FROM task_executions
WHERE task_executions.id = any(array((SELECT tasks.id FROM tasks)))
