-- taken
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS entry_id
    FROM json_each(:given) AS given_rows
)
DELETE FROM task_outbox
WHERE task_outbox.id IN (
    SELECT picked.id
    FROM (
        SELECT entry.id AS id
        FROM task_outbox AS entry
        WHERE entry.id IN (SELECT given.entry_id FROM given)
    ) AS picked
)
RETURNING
    task_execution_id AS id,
    available_at,
    id AS entry_id,
    (
        SELECT keyed.id
        FROM task_outbox AS keyed
        WHERE partition_key IS NOT NULL
        LIMIT :param_1
        OFFSET :param_2
    ) IS NOT NULL
        OR (
            SELECT mine.queue
            FROM queue_settings AS mine
            WHERE
                concurrency_limit IS NOT NULL
                OR rate_limit IS NOT NULL
                OR key_concurrency IS NOT NULL
                OR key_rate_limit IS NOT NULL
            LIMIT :param_3
            OFFSET :param_4
        ) IS NOT NULL AS besides,
    0 AS crowded,
    0 AS many,
    queue AS entry_queue,
    partition_key AS entry_partition_key;

-- claimed
WITH taken AS MATERIALIZED (
    SELECT taken_rows."key" AS ordinal, taken_rows.value AS id
    FROM json_each(:taken) AS taken_rows
)
UPDATE task_executions
SET
    status=CASE WHEN (task_executions.expires_at <= :now) THEN 'Cancelled' ELSE 'Running' END,
    lease_token=(
        task_executions.lease_token + CASE WHEN (task_executions.expires_at <= :now) THEN 0 ELSE 1 END
    ),
    worker_id=CASE WHEN (task_executions.expires_at <= :now) THEN NULL ELSE :worker_id END,
    retry_at=NULL,
    first_started_at=CASE
        WHEN (task_executions.expires_at <= :now) THEN task_executions.first_started_at
        ELSE coalesce(task_executions.first_started_at, :now)
    END,
    started_at=CASE WHEN (task_executions.expires_at <= :now) THEN task_executions.started_at ELSE :now END,
    completed_at=CASE WHEN (task_executions.expires_at <= :now) THEN :now ELSE NULL END,
    updated_at=:now
WHERE
    task_executions.id IN (SELECT taken.id FROM taken)
    AND task_executions.status = 'Ready'
RETURNING
    id,
    pipeline_execution_id,
    task_name,
    queue,
    priority,
    topic,
    partition_key,
    args,
    headers,
    attempt,
    max_attempts,
    recovery_attempts,
    timeout_seconds,
    created_at,
    first_started_at,
    started_at,
    CASE WHEN (status = 'Running') THEN lease_token ELSE NULL END AS lease_token,
    coalesce(:lease_seconds, lease_seconds) AS lease_seconds,
    strftime(
        :strftime_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(coalesce(:lease_seconds, lease_seconds) * :coalesce_1) AS INTEGER)
        ) / 1000000,
        :strftime_3
    ) || printf(
        :printf_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(coalesce(:lease_seconds, lease_seconds) * :coalesce_1) AS INTEGER)
        ) % 1000000
    ) AS lease_expires_at,
    expires_at;

-- lease
WITH claimed AS MATERIALIZED (
    SELECT
        claimed_rows."key" AS ordinal,
        json_extract(claimed_rows.value, '$[0]') AS id,
        json_extract(claimed_rows.value, '$[1]') AS queue,
        json_extract(claimed_rows.value, '$[2]') AS recovery_attempts,
        json_extract(claimed_rows.value, '$[3]') AS lease_token,
        json_extract(claimed_rows.value, '$[4]') AS lease_expires_at
    FROM json_each(:claimed) AS claimed_rows
)
INSERT INTO task_leases (task_execution_id, queue, lease_token, worker_id, lease_expires_at, begun)
SELECT
    claimed.id,
    claimed.queue,
    claimed.lease_token,
    :worker_id AS anon_1,
    claimed.lease_expires_at,
    CASE WHEN (:says_begin = 1 AND claimed.recovery_attempts >= 2) THEN 0 ELSE NULL END AS anon_2
FROM claimed
WHERE claimed.lease_token IS NOT NULL
ON CONFLICT (task_execution_id) DO UPDATE SET queue = excluded.queue, lease_token = excluded.lease_token, worker_id = excluded.worker_id, lease_expires_at = excluded.lease_expires_at, begun = excluded.begun;

-- event
WITH claimed AS MATERIALIZED (
    SELECT
        claimed_rows."key" AS ordinal,
        json_extract(claimed_rows.value, '$[0]') AS id,
        json_extract(claimed_rows.value, '$[1]') AS pipeline_execution_id,
        json_extract(claimed_rows.value, '$[2]') AS attempt,
        json_extract(claimed_rows.value, '$[3]') AS lease_token,
        json_extract(claimed_rows.value, '$[4]') AS expires_at
    FROM json_each(:claimed) AS claimed_rows
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
    claimed.pipeline_execution_id,
    claimed.id,
    CASE WHEN (claimed.lease_token IS NULL) THEN 'task_expired' ELSE 'task_claimed' END AS anon_1,
    CASE
        WHEN (claimed.lease_token IS NULL) THEN json_patch(
            '{}',
            json_object('expires_at', claimed.expires_at)
        )
        WHEN (:lease_seconds IS NOT NULL) THEN json_patch(
            '{}',
            json_object('attempt', claimed.attempt, 'lease_seconds', CAST(:lease_seconds AS DOUBLE))
        )
        ELSE json_patch('{}', json_object('attempt', claimed.attempt))
    END AS anon_2,
    :worker_id AS anon_3,
    claimed.lease_token,
    :now AS anon_4
FROM claimed
