DELETE FROM sleeping_workers
WHERE sleeping_workers.worker_id = %(worker_id)s::UUID
