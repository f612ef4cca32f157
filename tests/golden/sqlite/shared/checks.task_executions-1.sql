SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.id = task_outbox.task_execution_id
    AND task_executions.status = 'Ready'
    AND (
        task_executions.queue IS NOT task_outbox.queue
            OR task_executions.priority IS NOT task_outbox.priority
            OR task_executions.partition_key IS NOT task_outbox.partition_key
            OR task_executions.position IS NOT task_outbox.position
            OR task_executions.topic IS NOT task_outbox.topic
            OR task_executions.expires_at IS NOT task_outbox.expires_at
    )
