-- there
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS id,
        json_extract(given_rows.value, '$[1]') AS lease_token
    FROM json_each(:given) AS given_rows
)
SELECT task_leases.task_execution_id AS id
FROM task_leases
JOIN given ON task_leases.task_execution_id = given.id
WHERE
    task_leases.task_execution_id IN (SELECT given.id FROM given)
    AND task_leases.lease_token = given.lease_token
    AND task_leases.worker_id = :worker_id
