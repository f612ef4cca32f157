SELECT task_outbox.task_execution_id, task_outbox.available_at
FROM task_outbox
WHERE task_outbox.queue = %(queue)s::VARCHAR AND task_outbox.partition_key = %(partition_key)s::VARCHAR
ORDER BY task_outbox.priority DESC, task_outbox.position
LIMIT %(param_1)s::INTEGER
