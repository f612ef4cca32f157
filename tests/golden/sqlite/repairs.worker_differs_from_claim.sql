-- moved
UPDATE task_executions
SET worker_id=(
    SELECT execution_events.worker_id
    FROM execution_events
    WHERE
        execution_events.task_execution_id = task_executions.id
        AND execution_events.lease_token = task_executions.lease_token
        AND execution_events.event_type = 'task_claimed'
)
WHERE
    task_executions.status = 'Running'
    AND (
        SELECT execution_events.worker_id
        FROM execution_events
        WHERE
            execution_events.task_execution_id = task_executions.id
            AND execution_events.lease_token = task_executions.lease_token
            AND execution_events.event_type = 'task_claimed'
    ) IS NOT NULL
    AND task_executions.worker_id IS NOT (
        SELECT execution_events.worker_id
        FROM execution_events
        WHERE
            execution_events.task_execution_id = task_executions.id
            AND execution_events.lease_token = task_executions.lease_token
            AND execution_events.event_type = 'task_claimed'
    )
RETURNING id, worker_id, lease_token;

-- lease
WITH moved AS MATERIALIZED (
    SELECT
        moved_rows."key" AS ordinal,
        json_extract(moved_rows.value, '$[0]') AS id,
        json_extract(moved_rows.value, '$[1]') AS worker_id,
        json_extract(moved_rows.value, '$[2]') AS lease_token
    FROM json_each(:moved) AS moved_rows
)
UPDATE task_leases
SET worker_id=moved.worker_id
FROM moved
WHERE task_leases.task_execution_id = moved.id AND task_leases.lease_token = moved.lease_token
