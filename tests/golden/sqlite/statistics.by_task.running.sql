WITH queues AS MATERIALIZED (
    SELECT queues_rows."key" AS ordinal, queues_rows.value AS queue
    FROM json_each(:queues) AS queues_rows
)
SELECT task_leases.queue, task_executions.task_name, count(*) AS running
FROM task_leases
JOIN task_executions ON task_executions.id = task_leases.task_execution_id
WHERE
    :every_queue = 1
    OR task_leases.queue IN (SELECT queues.queue FROM queues)
GROUP BY task_leases.queue, task_executions.task_name
