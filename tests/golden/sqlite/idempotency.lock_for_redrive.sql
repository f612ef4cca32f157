-- wanted
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS id
    FROM json_each(:given) AS given_rows
)
SELECT
    both.scope,
    both."key",
    both.id,
    row_number() OVER (PARTITION BY both.scope, both."key" ORDER BY both.id) AS nth
FROM (
    SELECT
        idempotency_keys.scope AS scope,
        idempotency_keys."key" AS "key",
        idempotency_keys.task_execution_id AS id
    FROM idempotency_keys
    WHERE
        idempotency_keys.task_execution_id IN (SELECT given.id FROM given)
        AND idempotency_keys.until_finished = 1
    UNION ALL
    SELECT
        dead_letters.task_name AS task_name,
        dead_letters.lost_key AS lost_key,
        dead_letters.task_execution_id AS task_execution_id
    FROM dead_letters
    WHERE
        dead_letters.task_execution_id IN (SELECT given.id FROM given)
        AND dead_letters.lost_key IS NOT NULL
) AS both;

-- locked
WITH wanted AS MATERIALIZED (
    SELECT
        wanted_rows."key" AS ordinal,
        json_extract(wanted_rows.value, '$[0]') AS scope,
        json_extract(wanted_rows.value, '$[1]') AS "key",
        json_extract(wanted_rows.value, '$[2]') AS id,
        json_extract(wanted_rows.value, '$[3]') AS nth
    FROM json_each(:wanted) AS wanted_rows
)
INSERT INTO idempotency_keys (scope, "key", task_execution_id, until_finished, created_at)
SELECT wanted.scope, wanted."key", wanted.id, 1 AS anon_1, :now AS anon_2
FROM wanted
WHERE wanted.nth = 1
ORDER BY wanted.scope, wanted."key"
ON CONFLICT (scope, "key") DO UPDATE SET "key" = idempotency_keys."key"
RETURNING task_execution_id AS id
