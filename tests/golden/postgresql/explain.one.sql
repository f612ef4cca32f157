WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    tasks AS (
        SELECT batch.id AS id, batch.ordinal AS ordinal
        FROM unnest(%(tasks_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
    ),
    page AS MATERIALIZED (
        SELECT
            task_outbox.task_execution_id AS id,
            task_outbox.id AS entry_id,
            task_outbox.queue AS queue,
            task_outbox.partition_key AS partition_key,
            task_outbox.available_at AS available_at,
            task_outbox.priority AS priority
        FROM task_outbox
        WHERE task_outbox.task_execution_id = any(array((SELECT tasks.id FROM tasks)))
    ),
    set_up AS MATERIALIZED (/* explain.set_up-1: count_1 */)
SELECT
    task_executions.id,
    task_executions.pipeline_execution_id,
    task_executions.task_name,
    task_executions.queue,
    task_executions.topic,
    task_executions.partition_key,
    task_executions.position,
    task_executions.priority,
    task_executions.args,
    task_executions.headers,
    task_executions.status,
    task_executions.attempt,
    task_executions.max_attempts,
    task_executions.recovery_attempts,
    task_executions.lease_seconds,
    task_executions.timeout_seconds,
    task_executions.lease_token,
    task_executions.worker_id,
    task_executions.cancel_requested_at,
    task_executions.on_dead_letter,
    task_executions.expires_at,
    task_executions.retry_at,
    task_executions.first_started_at,
    task_executions.started_at,
    task_executions.completed_at,
    task_executions.created_at,
    task_executions.updated_at,
    task_executions.last_error,
    task_executions.result,
    task_leases.lease_expires_at,
    (SELECT clock.now FROM clock) AS now,
    task_leases.progress,
    task_leases.progress_note,
    entry.id AS entry_id,
    entry.entry_id AS entry_entry_id,
    entry.available_at AS entry_available_at,
    entry.priority AS entry_priority,
    entry.head AS entry_head,
    entry.head_due AS entry_head_due,
    entry.owner AS entry_owner,
    entry.held AS entry_held,
    entry.paused_at AS entry_paused_at,
    entry.pause_reason AS entry_pause_reason,
    entry.concurrency_limit AS entry_concurrency_limit,
    entry.rate_limit AS entry_rate_limit,
    entry.rate_seconds AS entry_rate_seconds,
    entry.rate_full_at AS entry_rate_full_at,
    entry.key_concurrency AS entry_key_concurrency,
    entry.key_rate_limit AS entry_key_rate_limit,
    entry.running AS entry_running,
    (
        SELECT partition_claims.task_execution_id
        FROM partition_claims
        WHERE
            partition_claims.queue = task_executions.queue
            AND partition_claims.partition_key = task_executions.partition_key
            AND partition_claims.task_execution_id = task_executions.id
            AND partition_claims.held
    ) AS holds_key,
    dead_letters.exception AS dead_letter_exception,
    dead_letters.lost_key AS lost_key,
    (
        SELECT idempotency_keys.key
        FROM idempotency_keys
        WHERE idempotency_keys.task_execution_id = task_executions.id
        ORDER BY idempotency_keys.key
        LIMIT %(param_1)s::INTEGER
    ) AS idempotency_key
FROM task_executions
LEFT OUTER JOIN task_leases ON task_leases.task_execution_id = task_executions.id
LEFT OUTER JOIN (
    SELECT
        page.id AS id,
        page.entry_id AS entry_id,
        page.available_at AS available_at,
        page.priority AS priority,
        (SELECT clock.now FROM clock) AS now,
        (
            SELECT first.task_execution_id
            FROM task_outbox AS first
            WHERE first.queue = page.queue AND first.partition_key = page.partition_key
            ORDER BY first.priority DESC, first.position
            LIMIT %(param_2)s::INTEGER
        ) AS head,
        (
            SELECT first.available_at
            FROM task_outbox AS first
            WHERE first.queue = page.queue AND first.partition_key = page.partition_key
            ORDER BY first.priority DESC, first.position
            LIMIT %(param_2)s::INTEGER
        ) AS head_due,
        (
            SELECT claim.task_execution_id
            FROM partition_claims AS claim
            WHERE claim.queue = page.queue AND claim.partition_key = page.partition_key
        ) AS owner,
        (
            SELECT claim.held
            FROM partition_claims AS claim
            WHERE claim.queue = page.queue AND claim.partition_key = page.partition_key
        ) AS held,
        set_up.paused_at AS paused_at,
        set_up.pause_reason AS pause_reason,
        set_up.concurrency_limit AS concurrency_limit,
        set_up.rate_limit AS rate_limit,
        set_up.rate_seconds AS rate_seconds,
        set_up.rate_full_at AS rate_full_at,
        set_up.key_concurrency AS key_concurrency,
        set_up.key_rate_limit AS key_rate_limit,
        set_up.running AS running
    FROM page
    LEFT OUTER JOIN set_up ON set_up.queue = page.queue
) AS entry ON entry.id = task_executions.id
LEFT OUTER JOIN dead_letters ON dead_letters.task_execution_id = task_executions.id
WHERE task_executions.id = %(task_id)s::UUID
