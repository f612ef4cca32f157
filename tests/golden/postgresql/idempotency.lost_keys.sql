WITH
    given AS (
        SELECT batch.id AS id, batch.ordinal AS ordinal
        FROM unnest(%(given_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
    ),
    found AS MATERIALIZED (
        SELECT
            dead_letters.task_execution_id AS id,
            dead_letters.task_name AS scope,
            dead_letters.lost_key AS key
        FROM dead_letters
        WHERE
            dead_letters.task_execution_id = any(array((SELECT given.id FROM given)))
            AND dead_letters.lost_key IS NOT NULL
    )
SELECT found.id, found.scope, found.key
FROM found
