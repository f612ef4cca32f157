SELECT task_outbox.task_execution_id AS id
FROM task_outbox
WHERE task_outbox.task_execution_id >= :from_id AND task_outbox.task_execution_id < :to_id
ORDER BY task_outbox.task_execution_id DESC
LIMIT 2
OFFSET :scan - 1
