-- holder
WITH given AS MATERIALIZED
(SELECT given_rows."key" AS ordinal, json_extract(given_rows.value, '$[0]') AS scope, json_extract(given_rows.value,
    '$[1]') AS "key"
FROM json_each(:given) AS given_rows)
  SELECT idempotency_keys.scope, idempotency_keys."key", idempotency_keys.task_execution_id AS id
FROM idempotency_keys JOIN given ON idempotency_keys.scope = given.scope AND idempotency_keys."key" = given."key"
