SELECT task_leases.task_execution_id AS id
FROM task_leases
WHERE
    task_leases.task_execution_id >= :from_id
    AND task_leases.task_execution_id < :to_id
    AND (:queue IS NULL OR task_leases.queue = :queue)
    AND (:worker IS NULL OR task_leases.worker_id = :worker)
ORDER BY task_leases.task_execution_id
LIMIT 2
OFFSET :scan - 1
