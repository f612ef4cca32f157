SELECT count(*) AS count_1
FROM (
    SELECT entry.task_execution_id AS id
    FROM task_outbox AS entry
    WHERE
        entry.queue = pairs.queue
        AND entry.partition_key IS NULL
        AND entry.priority = pairs.priority
        AND entry.available_at > :now
    ORDER BY entry.available_at, entry.id
    LIMIT :most_looked_up
    OFFSET :param_1
) AS nearest
WHERE (
    SELECT execution.retry_at
    FROM task_executions AS execution
    WHERE execution.id = nearest.id
) IS NOT NULL
