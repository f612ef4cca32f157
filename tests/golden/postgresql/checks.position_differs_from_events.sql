SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.partition_key IS NOT NULL
    AND task_executions.position != (
        SELECT CAST((CAST(execution_events.event_data AS JSONB) ->> 'position') AS BIGINT) AS anon_1
        FROM execution_events
        WHERE
            execution_events.task_execution_id = task_executions.id
            AND execution_events.lease_token IS NULL
            AND execution_events.event_data LIKE '%%"position"%%'
            AND (CAST(execution_events.event_data AS JSONB) ->> 'position') IS NOT NULL
        ORDER BY execution_events.sequence_num DESC
        LIMIT %(param_1)s::INTEGER
    )
