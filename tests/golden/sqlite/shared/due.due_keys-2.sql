SELECT
    0 AS place,
    recent.queue AS queue,
    head.task_execution_id AS task_execution_id,
    head.partition_key AS partition_key,
    head.available_at AS available_at,
    head.topic AS topic,
    row_number() OVER (ORDER BY recent.partition_key, recent.queue) AS n
FROM recent
JOIN task_outbox AS head ON head.id = (
    SELECT head_entry.id
    FROM task_outbox AS head_entry
    WHERE head_entry.queue = recent.queue AND head_entry.partition_key = recent.partition_key
    ORDER BY head_entry.priority DESC, head_entry.position
    LIMIT :param_1
    OFFSET :param_2
)
