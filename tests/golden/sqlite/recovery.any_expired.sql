SELECT task_leases.task_execution_id AS id
FROM task_leases
WHERE task_leases.lease_expires_at < :now
LIMIT :param_1
OFFSET :param_2
