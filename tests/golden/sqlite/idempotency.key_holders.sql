-- found
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS scope,
        json_extract(given_rows.value, '$[1]') AS "key"
    FROM json_each(:given) AS given_rows
)
SELECT (
    SELECT idempotency_keys.task_execution_id
    FROM idempotency_keys
    WHERE idempotency_keys.scope = given.scope AND idempotency_keys."key" = given."key"
) AS id
FROM given;

-- holder
WITH found AS MATERIALIZED (
    SELECT found_rows."key" AS ordinal, found_rows.value AS id
    FROM json_each(:found) AS found_rows
)
SELECT
    idempotency_keys.task_execution_id AS id,
    idempotency_keys.scope,
    idempotency_keys."key",
    idempotency_keys.expires_at <= :now AS expired,
    idempotency_keys.until_finished
FROM idempotency_keys
WHERE idempotency_keys.task_execution_id IN (SELECT found.id FROM found);

-- task
WITH holder AS MATERIALIZED (
    SELECT holder_rows."key" AS ordinal, holder_rows.value AS id
    FROM json_each(:holder) AS holder_rows
)
SELECT task_executions.id, task_executions.status
FROM task_executions
WHERE task_executions.id IN (SELECT holder.id FROM holder)
