SELECT found.recorded
FROM (
    SELECT
        execution_events.sequence_num AS sequence_num,
        json_extract(execution_events.event_data, '$.exception') AS recorded
    FROM execution_events
    WHERE
        execution_events.task_execution_id = task_executions.id
        AND execution_events.event_type != 'task_claimed'
        AND execution_events.lease_token IS NOT NULL
        AND execution_events.event_type IN ('task_failed', 'task_abandoned')
    UNION ALL
    SELECT
        execution_events.sequence_num AS sequence_num,
        json_extract(execution_events.event_data, '$.exception') AS recorded
    FROM execution_events
    WHERE
        execution_events.task_execution_id = task_executions.id
        AND execution_events.lease_token IS NULL
        AND execution_events.event_type IN ('task_failed', 'task_abandoned')
) AS found
ORDER BY found.sequence_num + 0 DESC
LIMIT :param_1
OFFSET :param_2
