SELECT
    following_entry.id AS id,
    following_entry.task_execution_id AS task_execution_id,
    following_entry.queue AS queue,
    following_entry.priority AS priority,
    following_entry.partition_key AS partition_key,
    following_entry.position AS position,
    following_entry.topic AS topic,
    following_entry.available_at AS available_at,
    following_entry.expires_at AS expires_at,
    following_entry.created_at AS created_at
FROM task_outbox AS following_entry
WHERE following_entry.queue = hopped.queue AND following_entry.partition_key > hopped.partition_key
ORDER BY following_entry.partition_key, following_entry.priority DESC, following_entry.position
LIMIT %(param_1)s::INTEGER
