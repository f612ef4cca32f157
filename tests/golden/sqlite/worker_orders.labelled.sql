SELECT workers.id
FROM workers
WHERE workers.label = :label AND workers.ended_at IS NULL
ORDER BY workers.id
