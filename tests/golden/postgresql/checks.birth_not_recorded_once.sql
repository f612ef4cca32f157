SELECT task_executions.id
FROM task_executions
WHERE (
    SELECT count(*) AS count_1
    FROM execution_events
    WHERE
        execution_events.task_execution_id = task_executions.id
        AND execution_events.lease_token IS NULL
        AND execution_events.event_type = 'task_created'
) != %(param_1)s::INTEGER
