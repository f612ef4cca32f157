SELECT workers.id, workers.label, workers.host, workers.pid
FROM workers
WHERE workers.ended_at IS NULL
ORDER BY workers.id
