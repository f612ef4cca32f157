SELECT found.recorded
FROM (
    SELECT
        execution_events.sequence_num AS sequence_num,
        CAST(json_extract(execution_events.event_data, '$.position') AS BIGINT) AS recorded
    FROM execution_events
    WHERE
        execution_events.task_execution_id = task_executions.id
        AND execution_events.lease_token IS NULL
        AND execution_events.event_data LIKE '%"position"%'
        AND json_extract(execution_events.event_data, '$.position') IS NOT NULL
) AS found
ORDER BY found.sequence_num + 0 DESC
LIMIT :param_1
OFFSET :param_2
