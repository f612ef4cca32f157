UPDATE workers
SET unknown_tasks=:unknown_tasks_json, last_seen_at=:now
WHERE workers.id = :worker_id AND workers.ended_at IS NULL
RETURNING asked_to, stacks_asked_at
