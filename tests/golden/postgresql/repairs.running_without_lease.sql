WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    lease AS (
        INSERT INTO task_leases (task_execution_id, queue, lease_token, worker_id, lease_expires_at)
        SELECT
            task_executions.id AS id,
            task_executions.queue AS queue,
            task_executions.lease_token AS lease_token,
            task_executions.worker_id AS worker_id,
            (SELECT clock.now FROM clock) AS anon_1
        FROM task_executions
        WHERE
            task_executions.status = 'Running'
            AND task_executions.worker_id IS NOT NULL
            AND NOT (
                EXISTS (
                    SELECT task_leases.task_execution_id
                    FROM task_leases
                    WHERE
                        task_leases.task_execution_id = task_executions.id
                        AND task_leases.lease_token = task_executions.lease_token
                        AND task_leases.worker_id = task_executions.worker_id
                )
            )
        FOR UPDATE OF task_executions
        ON CONFLICT (task_execution_id) DO UPDATE SET queue = excluded.queue, lease_token = excluded.lease_token, worker_id = excluded.worker_id, lease_expires_at = excluded.lease_expires_at
        RETURNING task_leases.task_execution_id AS id
    )
SELECT lease.id
FROM lease
