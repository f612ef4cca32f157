SELECT found.recorded
FROM (
    SELECT
        execution_events.sequence_num AS sequence_num,
        CAST((CAST(execution_events.event_data AS JSONB) ->> 'position') AS BIGINT) AS recorded
    FROM execution_events
    WHERE
        execution_events.task_execution_id = task_executions.id
        AND execution_events.lease_token IS NULL
        AND execution_events.event_data LIKE '%%"position"%%'
        AND (CAST(execution_events.event_data AS JSONB) ->> 'position') IS NOT NULL
) AS found
ORDER BY found.sequence_num + 0 DESC
LIMIT %(param_1)s::INTEGER
