WITH
    given AS (
        SELECT batch.id AS id, batch.ordinal AS ordinal
        FROM unnest(%(given_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
    ),
    locked AS MATERIALIZED (
        SELECT idempotency_keys.task_execution_id AS id
        FROM idempotency_keys
        WHERE idempotency_keys.task_execution_id = any(array((SELECT given.id FROM given)))
        ORDER BY idempotency_keys.scope, idempotency_keys.key
        FOR UPDATE
    )
SELECT locked.id
FROM locked
