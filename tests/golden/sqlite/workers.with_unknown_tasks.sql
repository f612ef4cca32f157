SELECT workers.unknown_tasks
FROM workers
WHERE workers.unknown_tasks IS NOT NULL
