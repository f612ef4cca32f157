-- gone
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS entry_id
    FROM json_each(:given) AS given_rows
)
DELETE FROM task_outbox
WHERE task_outbox.id IN (SELECT given.entry_id FROM given)
RETURNING task_execution_id AS id;

-- moved
WITH gone AS MATERIALIZED (
    SELECT gone_rows."key" AS ordinal, gone_rows.value AS id
    FROM json_each(:gone) AS gone_rows
)
UPDATE task_executions
SET status='Cancelled', completed_at=:now, updated_at=:now
WHERE
    task_executions.id IN (SELECT gone.id FROM gone)
    AND task_executions.status = 'Ready'
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
    status,
    attempt,
    recovery_attempts;

-- event
WITH
    moved AS MATERIALIZED (
        SELECT
            moved_rows."key" AS ordinal,
            json_extract(moved_rows.value, '$[0]') AS id,
            json_extract(moved_rows.value, '$[1]') AS pipeline_execution_id,
            json_extract(moved_rows.value, '$[2]') AS attempt,
            json_extract(moved_rows.value, '$[3]') AS recovery_attempts
        FROM json_each(:moved) AS moved_rows
    ),
    gone AS MATERIALIZED (
        SELECT gone_rows."key" AS ordinal, gone_rows.value AS id
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
    'task_cancelled',
    json_patch(
        '{}',
        json_object('attempt', moved.attempt, 'recovery_attempts', moved.recovery_attempts, 'reason', :reason)
    ) AS json_patch_1,
    NULL AS anon_1,
    NULL AS anon__1,
    :now AS anon_2
FROM moved
JOIN gone ON moved.id = gone.id;

-- ticks
WITH moved AS MATERIALIZED (
    SELECT moved_rows."key" AS ordinal, moved_rows.value AS id
    FROM json_each(:moved) AS moved_rows
)
DELETE FROM schedule_ticks
WHERE schedule_ticks.task_execution_id IN (SELECT moved.id FROM moved)
RETURNING task_execution_id AS id, tick
