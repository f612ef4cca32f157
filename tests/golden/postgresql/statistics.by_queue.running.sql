WITH queues AS (
    SELECT batch.queue AS queue, batch.ordinal AS ordinal
    FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
)
SELECT task_leases.queue, count(*) AS running
FROM task_leases
WHERE
    %(every_queue)s
    OR task_leases.queue = any(array((SELECT queues.queue FROM queues)))
GROUP BY task_leases.queue
