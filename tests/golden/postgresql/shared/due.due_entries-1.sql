SELECT
    due.queue AS queue,
    due.partition_key AS partition_key,
    due.id AS id,
    due.priority AS priority,
    due.available_at AS available_at,
    due.topic AS topic
FROM limited
JOIN LATERAL (
    SELECT
        due_entry.id AS id,
        due_entry.task_execution_id AS task_execution_id,
        due_entry.queue AS queue,
        due_entry.priority AS priority,
        due_entry.partition_key AS partition_key,
        due_entry.position AS position,
        due_entry.topic AS topic,
        due_entry.available_at AS available_at,
        due_entry.expires_at AS expires_at,
        due_entry.created_at AS created_at
    FROM task_outbox AS due_entry
    WHERE
        due_entry.queue = limited.queue
        AND due_entry.partition_key IS NOT NULL
        AND due_entry.available_at <= (SELECT clock.now FROM clock)
    ORDER BY due_entry.available_at, due_entry.id
    LIMIT 1000
) AS due ON true
