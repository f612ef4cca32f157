SELECT workers.stacks, workers.stacks_at
FROM workers
WHERE workers.id = %(worker_id)s::UUID AND workers.stacks_at IS NOT NULL
