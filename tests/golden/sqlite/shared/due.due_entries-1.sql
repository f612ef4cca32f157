SELECT
    due.queue AS queue,
    due.partition_key AS partition_key,
    due.id AS id,
    due.priority AS priority,
    due.available_at AS available_at,
    due.topic AS topic
FROM limited
JOIN task_outbox AS due ON due.id IN (
    SELECT due_entry.id
    FROM task_outbox AS due_entry
    WHERE
        due_entry.queue = limited.queue
        AND due_entry.partition_key IS NOT NULL
        AND due_entry.available_at <= :now
    ORDER BY due_entry.available_at, due_entry.id
    LIMIT 1000
    OFFSET :param_1
)
