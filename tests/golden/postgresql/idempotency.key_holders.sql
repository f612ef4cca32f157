WITH
    given AS (
        SELECT batch.scope AS scope, batch.key AS key, batch.ordinal AS ordinal
        FROM unnest(%(given_scope)s::TEXT[], %(given_key)s::TEXT[]) WITH ORDINALITY AS batch(
            scope,
            key,
            ordinal
        )
    ),
    found AS MATERIALIZED (
        SELECT (
            SELECT idempotency_keys.task_execution_id
            FROM idempotency_keys
            WHERE idempotency_keys.scope = given.scope AND idempotency_keys.key = given.key
        ) AS id
        FROM given
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    holder AS MATERIALIZED (
        SELECT
            idempotency_keys.task_execution_id AS id,
            idempotency_keys.scope AS scope,
            idempotency_keys.key AS key,
            idempotency_keys.expires_at <= (SELECT clock.now FROM clock) AS expired,
            idempotency_keys.until_finished AS until_finished
        FROM idempotency_keys
        WHERE idempotency_keys.task_execution_id = any(array((SELECT found.id FROM found)))
    ),
    task AS MATERIALIZED (
        SELECT task_executions.id AS id, task_executions.status AS status
        FROM task_executions
        WHERE task_executions.id = any(array((SELECT holder.id FROM holder)))
    )
SELECT holder.id, holder.scope, holder.key, holder.expired, holder.until_finished, task.status
FROM holder
LEFT OUTER JOIN task ON task.id = holder.id
