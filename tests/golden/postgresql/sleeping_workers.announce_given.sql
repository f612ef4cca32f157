WITH RECURSIVE
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    ),
    waiting_pairs(queue, priority) AS (/* due.waiting_pairs-1: param_2, param_3, anon_2 */)
INSERT INTO sleeping_workers (worker_id, queue, wakes_at)
SELECT
    %(worker_id)s::UUID AS anon_1,
    asked.queue,
    least(
        (SELECT clock.now FROM clock) + %(longest_seconds)s * interval '1 second',
        (/* sleeping_workers.task_outbox-2: param_1, param_4 */)
    ) AS least_1
FROM (SELECT queues.queue AS queue FROM queues) AS asked
ON CONFLICT (worker_id, queue) DO UPDATE SET wakes_at = excluded.wakes_at
RETURNING CAST(
    EXTRACT(epoch FROM sleeping_workers.wakes_at - (SELECT clock.now FROM clock)) AS DOUBLE PRECISION
) AS seconds
