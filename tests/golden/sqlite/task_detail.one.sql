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
    :now AS now,
    task_outbox.id AS entry_id,
    task_outbox.available_at AS entry_available_at,
    task_outbox.priority AS entry_priority,
    queue_settings.paused_at AS queue_paused_at,
    queue_settings.concurrency_limit AS queue_concurrency_limit,
    queue_settings.rate_limit AS queue_rate_limit,
    queue_settings.rate_seconds AS queue_rate_seconds,
    queue_settings.rate_full_at AS queue_rate_full_at,
    queue_settings.key_concurrency AS queue_key_concurrency,
    queue_settings.key_rate_limit AS queue_key_rate_limit,
    (
        SELECT partition_claims.task_execution_id
        FROM partition_claims
        WHERE
            partition_claims.queue = task_executions.queue
            AND partition_claims.partition_key = task_executions.partition_key
    ) AS key_owner,
    (
        SELECT partition_claims.held
        FROM partition_claims
        WHERE
            partition_claims.queue = task_executions.queue
            AND partition_claims.partition_key = task_executions.partition_key
    ) AS key_held,
    (
        SELECT first.task_execution_id
        FROM task_outbox AS first
        WHERE first.queue = task_executions.queue AND first.partition_key = task_executions.partition_key
        ORDER BY first.priority DESC, first.position
        LIMIT :param_1
        OFFSET :param_2
    ) AS key_head,
    (
        SELECT first.available_at
        FROM task_outbox AS first
        WHERE first.queue = task_executions.queue AND first.partition_key = task_executions.partition_key
        ORDER BY first.priority DESC, first.position
        LIMIT :param_1
        OFFSET :param_3
    ) AS key_head_due,
    CASE
        WHEN (queue_settings.concurrency_limit IS NOT NULL) THEN (
            SELECT count(*) AS count_1
            FROM task_leases AS lease
            WHERE lease.queue = task_executions.queue
        )
    END AS queue_running,
    dead_letters.exception AS dead_letter_exception,
    dead_letters.failed_at AS dead_letter_failed_at,
    dead_letters.lost_key AS lost_key,
    (
        SELECT idempotency_keys."key"
        FROM idempotency_keys
        WHERE idempotency_keys.task_execution_id = task_executions.id
        ORDER BY idempotency_keys."key"
        LIMIT :param_4
        OFFSET :param_5
    ) AS idempotency_key
FROM task_executions
LEFT OUTER JOIN task_leases ON task_leases.task_execution_id = task_executions.id
LEFT OUTER JOIN task_outbox ON task_outbox.task_execution_id = task_executions.id
LEFT OUTER JOIN queue_settings ON queue_settings.queue = task_executions.queue
LEFT OUTER JOIN dead_letters ON dead_letters.task_execution_id = task_executions.id
WHERE task_executions.id = :task_id
