SELECT
    partition_claims.partition_key,
    task_executions.pipeline_execution_id AS event_id,
    task_executions.topic,
    task_executions.id AS dead_letter,
    task_executions.completed_at AS failed_at,
    task_executions.last_error AS error,
    coalesce(waits.messages, 0) AS waiting
FROM partition_claims
JOIN task_executions ON task_executions.id = partition_claims.task_execution_id
LEFT OUTER JOIN (
    SELECT "some".partition_key AS partition_key, count(*) AS messages
    FROM (
        SELECT relay_messages.partition_key AS partition_key
        FROM relay_messages
        WHERE relay_messages.relay = %(relay)s::VARCHAR
        ORDER BY relay_messages.id
        LIMIT %(most)s::INTEGER
    ) AS "some"
    GROUP BY "some".partition_key
) AS waits ON waits.partition_key = partition_claims.partition_key
WHERE partition_claims.queue = %(queue)s::VARCHAR AND partition_claims.held
ORDER BY task_executions.completed_at, partition_claims.partition_key
LIMIT %(limit)s::BIGINT
