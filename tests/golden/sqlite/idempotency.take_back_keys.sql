-- letter
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS "key",
        json_extract(given_rows.value, '$[1]') AS holder
    FROM json_each(:given) AS given_rows
)
UPDATE dead_letters
SET lost_key=given."key"
FROM given
WHERE
    dead_letters.task_execution_id IN (SELECT given.holder FROM given)
    AND dead_letters.task_execution_id = given.holder;

-- key
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS id,
        json_extract(given_rows.value, '$[1]') AS scope,
        json_extract(given_rows.value, '$[2]') AS "key",
        json_extract(given_rows.value, '$[3]') AS holder
    FROM json_each(:given) AS given_rows
)
UPDATE idempotency_keys
SET task_execution_id=given.id, expires_at=NULL, until_finished=1, created_at=:now
FROM given
WHERE
    idempotency_keys.task_execution_id IN (SELECT given.holder FROM given)
    AND idempotency_keys.task_execution_id = given.holder
    AND idempotency_keys.scope = given.scope
    AND idempotency_keys."key" = given."key"
RETURNING task_execution_id AS id
