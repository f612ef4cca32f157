-- gone
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS id
    FROM json_each(:given) AS given_rows
)
DELETE FROM task_outbox
WHERE
    :from_ready = 1
    AND task_outbox.task_execution_id IN (SELECT given.id FROM given)
RETURNING task_execution_id AS id;

-- freed
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS id
    FROM json_each(:given) AS given_rows
)
DELETE FROM task_leases
WHERE
    :from_running = 1
    AND task_leases.task_execution_id IN (SELECT given.id FROM given)
RETURNING task_execution_id AS id, lease_token, worker_id;

-- moved
WITH
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS id,
            json_extract(given_rows.value, '$[1]') AS event_type,
            json_extract(given_rows.value, '$[2]') AS status,
            json_extract(given_rows.value, '$[3]') AS attempt,
            json_extract(given_rows.value, '$[4]') AS available_at
        FROM json_each(:given) AS given_rows
    ),
    gone AS MATERIALIZED (
        SELECT gone_rows."key" AS ordinal, gone_rows.value AS id
        FROM json_each(:gone) AS gone_rows
    ),
    freed AS MATERIALIZED (
        SELECT freed_rows."key" AS ordinal, freed_rows.value AS id
        FROM json_each(:freed) AS freed_rows
    )
UPDATE task_executions
SET
    status=given.status,
    attempt=coalesce(given.attempt, task_executions.attempt),
    recovery_attempts=CASE
        WHEN (given.event_type = 'task_requeued') THEN :param_1
        ELSE task_executions.recovery_attempts
    END,
    worker_id=NULL,
    cancel_requested_at=NULL,
    retry_at=CASE WHEN (given.event_type = 'task_retry_scheduled') THEN given.available_at ELSE NULL END,
    started_at=CASE WHEN (given.status = 'Ready') THEN NULL ELSE task_executions.started_at END,
    completed_at=CASE WHEN (given.status = 'Ready') THEN NULL ELSE :now END,
    updated_at=:now
FROM given
WHERE
    task_executions.id IN (SELECT given.id FROM given)
    AND task_executions.id = given.id
    AND (
        task_executions.status = 'Ready'
            AND task_executions.id IN (SELECT gone.id FROM gone)
            OR task_executions.status = 'Running'
            AND task_executions.id IN (SELECT freed.id FROM freed)
            OR task_executions.status = 'Failed'
            AND :from_failed = 1
    )
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

-- entry
WITH
    moved AS MATERIALIZED (/* operations.moved-1 */),
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS id,
            json_extract(given_rows.value, '$[1]') AS available_at
        FROM json_each(:given) AS given_rows
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
    CAST(coalesce(given.available_at, :now) AS TEXT) AS coalesce_1,
    :now AS anon_1
FROM moved
JOIN given ON moved.id = given.id
WHERE moved.status = 'Ready';

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
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS id,
            json_extract(given_rows.value, '$[1]') AS event_type,
            json_extract(given_rows.value, '$[2]') AS status,
            json_extract(given_rows.value, '$[3]') AS available_at,
            json_extract(given_rows.value, '$[4]') AS data
        FROM json_each(:given) AS given_rows
    ),
    freed AS MATERIALIZED (
        SELECT
            freed_rows."key" AS ordinal,
            json_extract(freed_rows.value, '$[0]') AS id,
            json_extract(freed_rows.value, '$[1]') AS lease_token,
            json_extract(freed_rows.value, '$[2]') AS worker_id
        FROM json_each(:freed) AS freed_rows
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
    given.event_type,
    json_patch(
        coalesce(given.data, '{}'),
        json_object(
            'attempt',
            moved.attempt,
            'recovery_attempts',
            moved.recovery_attempts,
            'available_at',
            CASE WHEN (given.status = 'Ready') THEN coalesce(given.available_at, :now) END,
            'retry_at',
            CASE WHEN (given.event_type = 'task_retry_scheduled') THEN coalesce(given.available_at, :now) END
        )
    ) AS json_patch_1,
    freed.worker_id,
    freed.lease_token,
    :now AS anon_1
FROM moved
JOIN given ON moved.id = given.id
LEFT OUTER JOIN freed ON moved.id = freed.id;

-- letter_gone
WITH moved AS MATERIALIZED (
    SELECT moved_rows."key" AS ordinal, moved_rows.value AS id
    FROM json_each(:moved) AS moved_rows
)
DELETE FROM dead_letters
WHERE dead_letters.task_execution_id IN (SELECT moved.id FROM moved);

-- key_freed
WITH moved AS MATERIALIZED (
    SELECT
        moved_rows."key" AS ordinal,
        json_extract(moved_rows.value, '$[0]') AS id,
        json_extract(moved_rows.value, '$[1]') AS partition_key,
        json_extract(moved_rows.value, '$[2]') AS on_dead_letter,
        json_extract(moved_rows.value, '$[3]') AS status
    FROM json_each(:moved) AS moved_rows
)
DELETE FROM partition_claims
WHERE partition_claims.task_execution_id IN (
    SELECT freeing.id
    FROM (
        SELECT moved.id AS id
        FROM moved
        WHERE
            moved.partition_key IS NOT NULL
            AND NOT (moved.status = 'Failed' AND moved.on_dead_letter = 'hold')
    ) AS freeing
)
