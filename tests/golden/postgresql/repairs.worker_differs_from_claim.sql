WITH
    moved AS (
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
            AND task_executions.worker_id IS DISTINCT FROM (
                SELECT execution_events.worker_id
                FROM execution_events
                WHERE
                    execution_events.task_execution_id = task_executions.id
                    AND execution_events.lease_token = task_executions.lease_token
                    AND execution_events.event_type = 'task_claimed'
            )
        RETURNING task_executions.id, task_executions.worker_id, task_executions.lease_token
    ),
    lease AS (
        UPDATE task_leases
        SET worker_id=moved.worker_id
        FROM moved
        WHERE task_leases.task_execution_id = moved.id AND task_leases.lease_token = moved.lease_token
    )
SELECT moved.id, moved.worker_id, moved.lease_token
FROM moved
