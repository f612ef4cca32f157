UPDATE workers
SET last_seen_at=:now
WHERE workers.id = :worker_id
RETURNING id
