DELETE FROM task_outbox WHERE task_outbox.id = :entry_id RETURNING id
