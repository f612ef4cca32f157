UPDATE workers
SET unknown_tasks=CASE WHEN :met_unknown THEN workers.unknown_tasks END, last_seen_at=:now, ended_at=:now
WHERE workers.id = :worker_id AND workers.ended_at IS NULL
