SELECT workers.id
FROM workers
WHERE workers.label = %(label)s::VARCHAR AND workers.ended_at IS NULL
ORDER BY workers.id
