-- moved
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS id,
        json_extract(given_rows.value, '$[1]') AS holder
    FROM json_each(:given) AS given_rows
)
UPDATE partition_claims
SET task_execution_id=(
    SELECT given.holder
    FROM given
    WHERE partition_claims.task_execution_id = given.id
)
WHERE partition_claims.task_execution_id IN (
    SELECT changed.id
    FROM (SELECT given.id AS id FROM given WHERE given.holder IS NOT NULL) AS changed
);

-- gone
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS id,
        json_extract(given_rows.value, '$[1]') AS holder
    FROM json_each(:given) AS given_rows
)
DELETE FROM partition_claims
WHERE partition_claims.task_execution_id IN (
    SELECT unused.id
    FROM (SELECT given.id AS id FROM given WHERE given.holder IS NULL) AS unused
)
