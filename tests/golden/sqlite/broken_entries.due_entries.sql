SELECT task_outbox.id AS entry_id
FROM task_outbox
WHERE task_outbox.id > :after AND task_outbox.available_at <= :now
ORDER BY task_outbox.id
LIMIT :limit
OFFSET :param_1
