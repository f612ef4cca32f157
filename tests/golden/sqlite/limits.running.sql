SELECT count(*) AS tasks
FROM task_leases
WHERE task_leases.queue = :queue
