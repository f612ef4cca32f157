-- expired
SELECT task_leases.task_execution_id AS id
FROM task_leases
WHERE task_leases.lease_expires_at < :now
ORDER BY task_leases.lease_expires_at
LIMIT :limit
OFFSET :param_1;

-- unlocked
WITH expired AS MATERIALIZED (
    SELECT expired_rows."key" AS ordinal, expired_rows.value AS id
    FROM json_each(:expired) AS expired_rows
)
SELECT task_executions.id
FROM task_executions
WHERE task_executions.id IN (SELECT expired.id FROM expired)
ORDER BY task_executions.id;

-- freed
WITH
    expired AS MATERIALIZED (
        SELECT expired_rows."key" AS ordinal, expired_rows.value AS id
        FROM json_each(:expired) AS expired_rows
    ),
    unlocked AS MATERIALIZED (
        SELECT unlocked_rows."key" AS ordinal, unlocked_rows.value AS id
        FROM json_each(:unlocked) AS unlocked_rows
    )
DELETE FROM task_leases
WHERE
    task_leases.task_execution_id IN (SELECT expired.id FROM expired)
    AND (
        task_leases.task_execution_id IN (SELECT unlocked.id FROM unlocked)
            OR NOT (
                EXISTS (
                    SELECT execution.id
                    FROM task_executions AS execution
                    WHERE execution.id = task_leases.task_execution_id
                )
            )
    )
RETURNING task_execution_id AS id, lease_token, worker_id, lease_expires_at, begun;

-- recovered
WITH freed AS MATERIALIZED (
    SELECT
        freed_rows."key" AS ordinal,
        json_extract(freed_rows.value, '$[0]') AS id,
        json_extract(freed_rows.value, '$[1]') AS lease_token,
        json_extract(freed_rows.value, '$[2]') AS worker_id,
        json_extract(freed_rows.value, '$[3]') AS begun
    FROM json_each(:freed) AS freed_rows
)
UPDATE task_executions
SET
    status=CASE
        WHEN (task_executions.cancel_requested_at IS NOT NULL) THEN 'Cancelled'
        WHEN (freed.begun IS NOT 0 AND task_executions.recovery_attempts >= :max_recoveries) THEN 'Failed'
        ELSE 'Ready'
    END,
    recovery_attempts=(
        task_executions.recovery_attempts + CASE
            WHEN (
                freed.begun IS NOT 0
                    AND NOT (
                        task_executions.cancel_requested_at IS NOT NULL
                            OR freed.begun IS NOT 0
                            AND task_executions.recovery_attempts >= :max_recoveries
                    )
            ) THEN :param_1
            ELSE :param_2
        END
    ),
    worker_id=NULL,
    started_at=CASE
        WHEN (
            task_executions.cancel_requested_at IS NOT NULL
                OR freed.begun IS NOT 0
                AND task_executions.recovery_attempts >= :max_recoveries
        ) THEN task_executions.started_at
        ELSE NULL
    END,
    completed_at=CASE
        WHEN (
            task_executions.cancel_requested_at IS NOT NULL
                OR freed.begun IS NOT 0
                AND task_executions.recovery_attempts >= :max_recoveries
        ) THEN :now
        ELSE NULL
    END,
    updated_at=:now,
    last_error=CASE
        WHEN (task_executions.cancel_requested_at IS NOT NULL) THEN task_executions.last_error
        WHEN (freed.begun IS NOT 0 AND task_executions.recovery_attempts >= :max_recoveries) THEN :abandonment
        ELSE task_executions.last_error
    END
FROM freed
WHERE
    task_executions.id IN (SELECT freed.id FROM freed)
    AND task_executions.id = freed.id
    AND task_executions.lease_token = freed.lease_token
    AND task_executions.worker_id = freed.worker_id
    AND task_executions.status = 'Running'
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
    recovery_attempts,
    last_error;

-- entry
WITH recovered AS MATERIALIZED (/* recovery.recovered-1 */)
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
    recovered.id,
    recovered.queue,
    recovered.priority,
    recovered.partition_key,
    recovered.position,
    recovered.topic,
    recovered.expires_at,
    CAST(:now AS TEXT) AS anon_1,
    :now AS anon_2
FROM recovered
WHERE recovered.status = 'Ready'
ON CONFLICT DO NOTHING;

-- event
WITH
    recovered AS MATERIALIZED (
        SELECT
            recovered_rows."key" AS ordinal,
            json_extract(recovered_rows.value, '$[0]') AS id,
            json_extract(recovered_rows.value, '$[1]') AS pipeline_execution_id,
            json_extract(recovered_rows.value, '$[2]') AS status,
            json_extract(recovered_rows.value, '$[3]') AS recovery_attempts,
            json_extract(recovered_rows.value, '$[4]') AS last_error
        FROM json_each(:recovered) AS recovered_rows
    ),
    freed AS MATERIALIZED (
        SELECT
            freed_rows."key" AS ordinal,
            json_extract(freed_rows.value, '$[0]') AS id,
            json_extract(freed_rows.value, '$[1]') AS lease_token,
            json_extract(freed_rows.value, '$[2]') AS worker_id,
            json_extract(freed_rows.value, '$[3]') AS lease_expires_at
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
    recovered.pipeline_execution_id,
    recovered.id,
    CASE
        WHEN (recovered.status = 'Ready') THEN 'task_reset'
        WHEN (recovered.status = 'Failed') THEN 'task_abandoned'
        ELSE 'task_cancelled'
    END AS anon_1,
    json_patch(
        '{}',
        json_object(
            'recovery_attempts',
            recovered.recovery_attempts,
            'lease_expires_at',
            CASE WHEN (freed.lease_expires_at < :now) THEN freed.lease_expires_at ELSE :now END,
            'available_at',
            CASE WHEN (recovered.status = 'Ready') THEN :now END,
            'error',
            CASE WHEN (recovered.status = 'Failed') THEN recovered.last_error END,
            'reason',
            :reason
        )
    ) AS json_patch_1,
    freed.worker_id,
    freed.lease_token,
    :now AS anon_2
FROM recovered
JOIN freed ON recovered.id = freed.id;

-- letter
WITH recovered AS MATERIALIZED (/* recovery.recovered-2 */)
INSERT INTO dead_letters (task_execution_id, queue, task_name, topic, partition_key, exception, failed_at)
SELECT
    recovered.id,
    recovered.queue,
    recovered.task_name,
    recovered.topic,
    recovered.partition_key,
    NULL AS anon_1,
    :now AS anon_2
FROM recovered
WHERE recovered.status = 'Failed'
ON CONFLICT DO NOTHING;

-- key_held
WITH recovered AS MATERIALIZED (
    SELECT
        recovered_rows."key" AS ordinal,
        json_extract(recovered_rows.value, '$[0]') AS id,
        json_extract(recovered_rows.value, '$[1]') AS partition_key,
        json_extract(recovered_rows.value, '$[2]') AS on_dead_letter,
        json_extract(recovered_rows.value, '$[3]') AS status
    FROM json_each(:recovered) AS recovered_rows
)
UPDATE partition_claims
SET held=1
WHERE partition_claims.task_execution_id IN (
    SELECT holding.id
    FROM (
        SELECT recovered.id AS id
        FROM recovered
        WHERE
            recovered.partition_key IS NOT NULL
            AND recovered.status = 'Failed'
            AND recovered.on_dead_letter = 'hold'
    ) AS holding
);

-- key_freed
WITH recovered AS MATERIALIZED (
    SELECT
        recovered_rows."key" AS ordinal,
        json_extract(recovered_rows.value, '$[0]') AS id,
        json_extract(recovered_rows.value, '$[1]') AS partition_key,
        json_extract(recovered_rows.value, '$[2]') AS on_dead_letter,
        json_extract(recovered_rows.value, '$[3]') AS status
    FROM json_each(:recovered) AS recovered_rows
)
DELETE FROM partition_claims
WHERE partition_claims.task_execution_id IN (
    SELECT freeing.id
    FROM (
        SELECT recovered.id AS id
        FROM recovered
        WHERE
            recovered.partition_key IS NOT NULL
            AND NOT (recovered.status = 'Failed' AND recovered.on_dead_letter = 'hold')
    ) AS freeing
)
