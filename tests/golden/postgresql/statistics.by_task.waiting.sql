WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    )
SELECT
    task_outbox.queue,
    task_executions.task_name,
    count(*) FILTER (WHERE task_outbox.available_at <= (SELECT clock.now FROM clock)) AS ready,
    count(*) FILTER (WHERE task_outbox.available_at > (SELECT clock.now FROM clock)) AS delayed,
    min(task_outbox.available_at) FILTER (WHERE task_outbox.available_at <= (SELECT clock.now FROM clock)) AS oldest_ready_at
FROM task_outbox
JOIN task_executions ON task_executions.id = task_outbox.task_execution_id
WHERE
    %(every_queue)s
    OR task_outbox.queue = any(array((SELECT queues.queue FROM queues)))
GROUP BY task_outbox.queue, task_executions.task_name
