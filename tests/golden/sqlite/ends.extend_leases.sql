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
    AND task_leases.worker_id = :worker_id;

-- held
WITH
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS id,
            json_extract(given_rows.value, '$[1]') AS lease_token
        FROM json_each(:given) AS given_rows
    ),
    there AS MATERIALIZED (
        SELECT there_rows."key" AS ordinal, there_rows.value AS id
        FROM json_each(:there) AS there_rows
    )
SELECT task_leases.task_execution_id AS id
FROM task_leases
JOIN given ON task_leases.task_execution_id = given.id
WHERE
    task_leases.task_execution_id IN (SELECT there.id FROM there)
    AND task_leases.lease_token = given.lease_token
    AND task_leases.worker_id = :worker_id
ORDER BY task_leases.task_execution_id;

-- beaten
WITH
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS id,
            json_extract(given_rows.value, '$[1]') AS lease_seconds,
            json_extract(given_rows.value, '$[2]') AS progress,
            json_extract(given_rows.value, '$[3]') AS progress_note
        FROM json_each(:given) AS given_rows
    ),
    held AS MATERIALIZED (
        SELECT held_rows."key" AS ordinal, held_rows.value AS id
        FROM json_each(:held) AS held_rows
    )
UPDATE task_leases
SET
    lease_expires_at=(
        strftime(
            :strftime_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(given.lease_seconds * :lease_seconds_1) AS INTEGER)
            ) / 1000000,
            :strftime_3
        ) || printf(
            :printf_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(given.lease_seconds * :lease_seconds_1) AS INTEGER)
            ) % 1000000
        )
    ),
    progress=coalesce(given.progress, task_leases.progress),
    progress_note=coalesce(given.progress_note, task_leases.progress_note)
FROM given
WHERE
    task_leases.task_execution_id IN (SELECT held.id FROM held)
    AND task_leases.task_execution_id = given.id
RETURNING task_execution_id AS id, lease_expires_at;

-- request
WITH there AS MATERIALIZED (
    SELECT there_rows."key" AS ordinal, there_rows.value AS id
    FROM json_each(:there) AS there_rows
)
SELECT task_executions.id, task_executions.cancel_requested_at
FROM task_executions
WHERE task_executions.id IN (SELECT there.id FROM there)
