SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.id = task_outbox.task_execution_id
    AND task_executions.status = 'Ready'
    AND (
        task_executions.queue IS DISTINCT FROM task_outbox.queue
            OR task_executions.priority IS DISTINCT FROM task_outbox.priority
            OR task_executions.partition_key IS DISTINCT FROM task_outbox.partition_key
            OR task_executions.position IS DISTINCT FROM task_outbox.position
            OR task_executions.topic IS DISTINCT FROM task_outbox.topic
            OR task_executions.expires_at IS DISTINCT FROM task_outbox.expires_at
    )
