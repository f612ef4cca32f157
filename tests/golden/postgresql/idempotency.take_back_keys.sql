WITH
    given AS (
        SELECT
            batch.id AS id,
            batch.scope AS scope,
            batch.key AS key,
            batch.holder AS holder,
            batch.ordinal AS ordinal
        FROM unnest(
            %(given_id)s::UUID[],
            %(given_scope)s::TEXT[],
            %(given_key)s::TEXT[],
            %(given_holder)s::UUID[]
        ) WITH ORDINALITY AS batch(id, scope, key, holder, ordinal)
    ),
    letter AS (
        UPDATE dead_letters
        SET lost_key=given.key
        FROM given
        WHERE
            dead_letters.task_execution_id = any(array((SELECT given.holder FROM given)))
            AND dead_letters.task_execution_id = given.holder
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    key AS (
        UPDATE idempotency_keys
        SET
            task_execution_id=given.id,
            expires_at=NULL,
            until_finished=true,
            created_at=(SELECT clock.now FROM clock)
        FROM given
        WHERE
            idempotency_keys.task_execution_id = any(array((SELECT given.holder FROM given)))
            AND idempotency_keys.task_execution_id = given.holder
            AND idempotency_keys.scope = given.scope
            AND idempotency_keys.key = given.key
        RETURNING idempotency_keys.task_execution_id AS id
    )
SELECT key.id
FROM key
