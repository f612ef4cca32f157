SELECT workers.version, workers.task_names, max(workers.last_seen_at) AS last_seen_at
FROM workers
WHERE workers.version IS NOT NULL
GROUP BY workers.version, workers.task_names
