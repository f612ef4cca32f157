SELECT task_executions.queue, CAST(task_executions.status AS TEXT) AS status, CASE WHEN (task_outbox.available_at >
    :now) THEN :param_1 ELSE :param_2 END AS delayed, count(*) AS tasks, min(task_outbox.available_at) AS
    oldest_available_at
FROM task_executions LEFT OUTER JOIN task_outbox ON task_outbox.task_execution_id = task_executions.id GROUP BY
    task_executions.queue, task_executions.status, CASE WHEN (task_outbox.available_at > :now) THEN :param_1 ELSE
    :param_2 END
ORDER BY task_executions.queue, task_executions.status, CASE WHEN (task_outbox.available_at > :now) THEN :param_1 ELSE
    :param_2 END
