SELECT steps.id
FROM (
    SELECT
        task_executions.id AS id,
        execution_events.event_type AS event_type,
        lead(execution_events.event_type) OVER (
            PARTITION BY task_executions.queue, task_executions.partition_key
            ORDER BY execution_events.sequence_num
        ) AS following
    FROM task_executions
    JOIN execution_events ON execution_events.task_execution_id = task_executions.id
    WHERE
        task_executions.partition_key IS NOT NULL
        AND substr(task_executions.partition_key, 1, 12) != 'concurrency:'
        AND execution_events.lease_token IS NOT NULL
        AND NOT (
            EXISTS (
                SELECT replaced.sequence_num
                FROM execution_events AS replaced
                WHERE
                    replaced.task_execution_id = task_executions.id
                    AND replaced.lease_token IS NULL
                    AND replaced.event_type = 'task_replaced'
            )
        )
) AS steps
WHERE steps.event_type = 'task_claimed' AND steps.following = 'task_claimed'
