-- found
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS entry_id
    FROM json_each(:given) AS given_rows
)
SELECT entry.id
FROM task_outbox AS entry
JOIN task_executions AS execution ON execution.id = entry.task_execution_id
WHERE entry.id IN (SELECT given.entry_id FROM given);

-- gone
WITH found AS MATERIALIZED (
    SELECT found_rows."key" AS ordinal, found_rows.value AS id
    FROM json_each(:found) AS found_rows
)
DELETE FROM task_outbox
WHERE task_outbox.id IN (SELECT found.id FROM found)
RETURNING
    task_execution_id AS id,
    id AS entry_id,
    strftime(
        :strftime_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(30.0 * :param_2) AS INTEGER)
        ) / 1000000,
        :strftime_3
    ) || printf(
        :printf_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(30.0 * :param_2) AS INTEGER)
        ) % 1000000
    ) AS due;

-- moved
WITH gone AS MATERIALIZED (
    SELECT
        gone_rows."key" AS ordinal,
        json_extract(gone_rows.value, '$[0]') AS id,
        json_extract(gone_rows.value, '$[1]') AS due
    FROM json_each(:gone) AS gone_rows
)
UPDATE task_executions
SET
    retry_at=CASE WHEN (task_executions.retry_at IS NOT NULL AND gone.due > :now) THEN gone.due ELSE NULL END,
    updated_at=:now
FROM gone
WHERE task_executions.id = gone.id AND task_executions.status = 'Ready'
RETURNING
    id,
    pipeline_execution_id,
    task_name,
    queue,
    priority,
    partition_key,
    position,
    topic,
    expires_at,
    on_dead_letter,
    status;

-- entry
WITH
    moved AS MATERIALIZED (/* operations.moved-1 */),
    gone AS MATERIALIZED (
        SELECT
            gone_rows."key" AS ordinal,
            json_extract(gone_rows.value, '$[0]') AS id,
            json_extract(gone_rows.value, '$[1]') AS due
        FROM json_each(:gone) AS gone_rows
    )
INSERT INTO task_outbox (
    task_execution_id,
    queue,
    priority,
    partition_key,
    position,
    topic,
    expires_at,
    available_at,
    created_at
)
SELECT
    moved.id,
    moved.queue,
    moved.priority,
    moved.partition_key,
    moved.position,
    moved.topic,
    moved.expires_at,
    CAST(gone.due AS TEXT) AS due,
    :now AS anon_1
FROM moved
JOIN gone ON moved.id = gone.id
WHERE moved.status = 'Ready';

-- event
WITH
    moved AS MATERIALIZED (
        SELECT
            moved_rows."key" AS ordinal,
            json_extract(moved_rows.value, '$[0]') AS id,
            json_extract(moved_rows.value, '$[1]') AS pipeline_execution_id
        FROM json_each(:moved) AS moved_rows
    ),
    gone AS MATERIALIZED (
        SELECT
            gone_rows."key" AS ordinal,
            json_extract(gone_rows.value, '$[0]') AS id,
            json_extract(gone_rows.value, '$[1]') AS due
        FROM json_each(:gone) AS gone_rows
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
    moved.pipeline_execution_id,
    moved.id,
    'task_rescheduled',
    json_patch('{}', json_object('available_at', gone.due, 'reason', 'the row of its batch is locked')) AS json_patch_1,
    NULL AS anon_1,
    NULL AS anon__1,
    :now AS anon_2
FROM moved
JOIN gone ON moved.id = gone.id
