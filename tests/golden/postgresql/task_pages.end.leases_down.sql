SELECT task_leases.task_execution_id AS id
FROM task_leases
WHERE
    task_leases.task_execution_id >= %(from_id)s::UUID
    AND task_leases.task_execution_id < %(to_id)s::UUID
    AND (%(queue)s::VARCHAR IS NULL OR task_leases.queue = %(queue)s::VARCHAR)
    AND (%(worker)s::UUID IS NULL OR task_leases.worker_id = %(worker)s::UUID)
ORDER BY task_leases.task_execution_id DESC
LIMIT 2
OFFSET %(scan)s::BIGINT - 1
