WITH clock AS MATERIALIZED
(SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now)
  SELECT task_leases.task_execution_id AS id, task_leases.lease_token, task_leases.worker_id,
      task_leases.lease_expires_at
FROM task_leases JOIN task_executions ON task_executions.id = task_leases.task_execution_id
WHERE task_leases.lease_expires_at > (SELECT clock.now
FROM clock) + (task_executions.lease_seconds + 1.0) * interval '1 second'
