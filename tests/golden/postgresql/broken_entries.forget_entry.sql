DELETE FROM task_outbox
WHERE task_outbox.id = %(entry_id)s::BIGINT
RETURNING task_outbox.id
