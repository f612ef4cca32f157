WITH given AS
(SELECT batch.scope AS scope, batch.key AS key, batch.ordinal AS ordinal
FROM unnest(%(given_scope)s::TEXT[], %(given_key)s::TEXT[]) WITH ORDINALITY AS batch(scope, key, ordinal)),
holder AS MATERIALIZED
(SELECT idempotency_keys.scope AS scope, idempotency_keys.key AS key, idempotency_keys.task_execution_id AS id
FROM idempotency_keys JOIN given ON idempotency_keys.scope = given.scope AND idempotency_keys.key = given.key)
  SELECT holder.scope, holder.key, holder.id
FROM holder
