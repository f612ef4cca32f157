-- asked
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS id
    FROM json_each(:given) AS given_rows
)
UPDATE task_executions
SET cancel_requested_at=:now, updated_at=:now
WHERE
    task_executions.id IN (SELECT given.id FROM given)
    AND task_executions.status = 'Running'
    AND task_executions.cancel_requested_at IS NULL
RETURNING id, pipeline_execution_id;

-- event
WITH
    asked AS MATERIALIZED (
        SELECT
            asked_rows."key" AS ordinal,
            json_extract(asked_rows.value, '$[0]') AS id,
            json_extract(asked_rows.value, '$[1]') AS pipeline_execution_id
        FROM json_each(:asked) AS asked_rows
    ),
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS id,
            json_extract(given_rows.value, '$[1]') AS data
        FROM json_each(:given) AS given_rows
    )
INSERT INTO execution_events (
    pipeline_execution_id,
    task_execution_id,
    event_type,
    event_data,
    worker_id,
    lease_token,
    created_at
)
SELECT
    asked.pipeline_execution_id,
    asked.id,
    'task_cancel_requested',
    given.data,
    NULL AS anon_1,
    NULL AS anon__1,
    :now AS anon_2
FROM asked
JOIN given ON asked.id = given.id
