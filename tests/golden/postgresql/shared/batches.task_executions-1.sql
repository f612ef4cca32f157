SELECT found.id
FROM (
    SELECT task_executions.id AS id, task_executions.status AS status
    FROM task_executions
    WHERE
        task_executions.pipeline_execution_id = %(batch_id)s::UUID
        AND task_executions.pipeline_execution_id != task_executions.id
        AND task_executions.id > %(after)s::UUID
        AND (
            task_executions.status = 'Ready'
                OR task_executions.status = 'Running'
                AND (task_executions.cancel_requested_at IS NULL OR %(force)s)
                OR task_executions.status = 'Failed'
                AND %(dead_letters)s
        )
    ORDER BY task_executions.id
    LIMIT %(limit)s::BIGINT
) AS found
