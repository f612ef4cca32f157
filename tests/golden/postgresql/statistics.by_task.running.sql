WITH queues AS (
    SELECT batch.queue AS queue, batch.ordinal AS ordinal
    FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
)
SELECT task_leases.queue, task_executions.task_name, count(*) AS running
FROM task_leases
JOIN task_executions ON task_executions.id = task_leases.task_execution_id
WHERE
    %(every_queue)s
    OR task_leases.queue = any(array((SELECT queues.queue FROM queues)))
GROUP BY task_leases.queue, task_executions.task_name
