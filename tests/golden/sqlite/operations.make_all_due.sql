-- gone
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS id
    FROM json_each(:given) AS given_rows
)
DELETE FROM task_outbox
WHERE
    task_outbox.task_execution_id IN (SELECT given.id FROM given)
    AND :due_now = 1
    AND task_outbox.available_at > :now
RETURNING task_execution_id AS id, available_at;

-- moved
WITH gone AS MATERIALIZED (
    SELECT gone_rows."key" AS ordinal, gone_rows.value AS id
    FROM json_each(:gone) AS gone_rows
)
UPDATE task_executions
SET
    priority=coalesce(:priority, task_executions.priority),
    retry_at=CASE WHEN :due_now THEN NULL ELSE task_executions.retry_at END,
    updated_at=:now
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
    status;

-- entry
WITH
    moved AS MATERIALIZED (/* operations.moved-1 */),
    gone AS MATERIALIZED (
        SELECT
            gone_rows."key" AS ordinal,
            json_extract(gone_rows.value, '$[0]') AS id,
            json_extract(gone_rows.value, '$[1]') AS available_at
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
    CAST(CASE WHEN :due_now THEN :now ELSE gone.available_at END AS TEXT) AS anon_1,
    :now AS anon_2
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
            json_extract(gone_rows.value, '$[1]') AS available_at
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
    json_patch(
        '{}',
        json_object(
            'available_at',
            CASE WHEN :due_now THEN :now ELSE gone.available_at END,
            'priority',
            :priority,
            'request',
            :request,
            'reason',
            :reason
        )
    ) AS json_patch_1,
    NULL AS anon_1,
    NULL AS anon__1,
    :now AS anon_2
FROM moved
JOIN gone ON moved.id = gone.id
