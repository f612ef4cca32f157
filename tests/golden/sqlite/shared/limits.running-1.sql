SELECT at_work.queue AS queue, at_work.partition_key AS partition_key, count(*) AS tasks
FROM task_executions AS at_work
WHERE
    at_work.id IN (
        SELECT leased.task_execution_id
        FROM (
            SELECT task_leases.task_execution_id AS task_execution_id
            FROM task_leases
            JOIN limited ON task_leases.queue = limited.queue
        ) AS leased
    )
    AND substr(at_work.partition_key, 1, 12) = 'concurrency:'
GROUP BY at_work.queue, at_work.partition_key
