WITH letter AS (
    INSERT INTO dead_letters (task_execution_id, queue, task_name, topic, partition_key, exception, failed_at)
    SELECT
        task_executions.id AS id,
        task_executions.queue AS queue,
        task_executions.task_name AS task_name,
        task_executions.topic AS topic,
        task_executions.partition_key AS partition_key,
        (
            SELECT found.said
            FROM (
                SELECT
                    execution_events.sequence_num AS sequence_num,
                    CAST(execution_events.event_data AS JSONB) ->> 'exception' AS said
                FROM execution_events
                WHERE
                    execution_events.task_execution_id = task_executions.id
                    AND execution_events.event_type != 'task_claimed'
                    AND execution_events.lease_token IS NOT NULL
                    AND execution_events.event_type IN ('task_failed', 'task_abandoned')
                UNION ALL
                SELECT
                    execution_events.sequence_num AS sequence_num,
                    CAST(execution_events.event_data AS JSONB) ->> 'exception' AS said
                FROM execution_events
                WHERE
                    execution_events.task_execution_id = task_executions.id
                    AND execution_events.lease_token IS NULL
                    AND execution_events.event_type IN ('task_failed', 'task_abandoned')
            ) AS found
            ORDER BY found.sequence_num + 0 DESC
            LIMIT %(param_1)s::INTEGER
        ) AS anon_1,
        task_executions.completed_at AS completed_at
    FROM task_executions
    WHERE
        task_executions.status = 'Failed'
        AND NOT (
            EXISTS (
                SELECT dead_letters.task_execution_id
                FROM dead_letters
                WHERE dead_letters.task_execution_id = task_executions.id
            )
        )
    FOR UPDATE OF task_executions
    ON CONFLICT DO NOTHING
    RETURNING dead_letters.task_execution_id AS id
)
SELECT letter.id
FROM letter
