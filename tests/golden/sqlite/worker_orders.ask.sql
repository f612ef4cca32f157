UPDATE workers
SET stacks_asked_at=:now, stacks=NULL, stacks_at=NULL
WHERE workers.id = :worker_id AND workers.ended_at IS NULL
RETURNING id
