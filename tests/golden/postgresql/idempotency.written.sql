WITH
    given AS (
        SELECT batch.id AS id, batch.ordinal AS ordinal
        FROM unnest(%(given_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
    ),
    found AS MATERIALIZED (
        SELECT task_executions.id AS id
        FROM task_executions
        WHERE task_executions.id = any(array((SELECT given.id FROM given)))
    )
SELECT found.id
FROM found
