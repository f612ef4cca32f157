WITH clock AS MATERIALIZED
(SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now)
  SELECT task_executions.queue, CAST(task_executions.status AS TEXT) AS status, CASE WHEN (task_outbox.available_at >
      (SELECT clock.now
FROM clock)) THEN %(param_1)s::INTEGER ELSE %(param_2)s::INTEGER END AS delayed, count(*) AS tasks,
    min(task_outbox.available_at) AS oldest_available_at
FROM task_executions LEFT OUTER JOIN task_outbox ON task_outbox.task_execution_id = task_executions.id GROUP BY
    task_executions.queue, task_executions.status, CASE WHEN (task_outbox.available_at > (SELECT clock.now
FROM clock)) THEN %(param_1)s::INTEGER ELSE %(param_2)s::INTEGER END
ORDER BY task_executions.queue, task_executions.status, CASE WHEN (task_outbox.available_at > (SELECT clock.now
FROM clock)) THEN %(param_1)s::INTEGER ELSE %(param_2)s::INTEGER END
