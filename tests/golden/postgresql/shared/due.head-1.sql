SELECT
    head_entry.id AS id,
    head_entry.task_execution_id AS task_execution_id,
    head_entry.queue AS queue,
    head_entry.priority AS priority,
    head_entry.partition_key AS partition_key,
    head_entry.position AS position,
    head_entry.topic AS topic,
    head_entry.available_at AS available_at,
    head_entry.expires_at AS expires_at,
    head_entry.created_at AS created_at
FROM task_outbox AS head_entry
WHERE head_entry.queue = crowded_queues.queue AND head_entry.partition_key > crowded_queues.after
ORDER BY head_entry.partition_key, head_entry.priority DESC, head_entry.position
LIMIT %(param_1)s::INTEGER
