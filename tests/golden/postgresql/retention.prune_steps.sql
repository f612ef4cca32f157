WITH given AS (
    SELECT batch.id AS id, batch.ordinal AS ordinal
    FROM unnest(%(given_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
)
DELETE FROM task_steps
WHERE task_steps.task_execution_id = any(array((SELECT given.id FROM given)))
