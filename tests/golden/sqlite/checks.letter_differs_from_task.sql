SELECT task_executions.id
FROM task_executions
JOIN dead_letters ON task_executions.id = dead_letters.task_execution_id
    AND task_executions.status = 'Failed'
    AND (
        dead_letters.queue IS NOT task_executions.queue
            OR dead_letters.task_name IS NOT task_executions.task_name
            OR dead_letters.topic IS NOT task_executions.topic
            OR dead_letters.partition_key IS NOT task_executions.partition_key
            OR dead_letters.exception IS NOT (/* checks.execution_events-2: param_1, param_2 */)
            OR dead_letters.failed_at IS NOT task_executions.completed_at
    )
