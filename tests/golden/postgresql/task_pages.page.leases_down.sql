WITH page AS MATERIALIZED (/* task_pages.page-2 */)
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
    task_leases.lease_expires_at
FROM task_executions
LEFT OUTER JOIN task_leases ON task_leases.task_execution_id = task_executions.id
WHERE task_executions.id = any(array((SELECT page.id FROM page)))
ORDER BY task_executions.id DESC
