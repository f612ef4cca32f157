SELECT task_executions.id
FROM task_executions
JOIN dead_letters ON task_executions.id = dead_letters.task_execution_id
    AND task_executions.status = 'Failed'
    AND (
        dead_letters.queue IS DISTINCT FROM task_executions.queue
            OR dead_letters.task_name IS DISTINCT FROM task_executions.task_name
            OR dead_letters.topic IS DISTINCT FROM task_executions.topic
            OR dead_letters.partition_key IS DISTINCT FROM task_executions.partition_key
            OR dead_letters.exception IS DISTINCT FROM (/* checks.execution_events-2: param_1 */)
            OR dead_letters.failed_at IS DISTINCT FROM task_executions.completed_at
    )
