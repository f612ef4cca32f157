UPDATE workers
SET stacks_asked_at=NULL, stacks=:stacks, stacks_at=:now
WHERE workers.id = :worker_id
RETURNING id
