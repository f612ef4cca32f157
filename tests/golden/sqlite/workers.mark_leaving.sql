UPDATE workers
SET concurrency=0, last_seen_at=:now
WHERE workers.id = :worker_id
