WITH RECURSIVE
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    floors AS (
        SELECT
            batch.queue AS queue,
            batch.priority AS priority,
            batch.below AS below,
            batch.since AS since,
            batch.ordinal AS ordinal
        FROM unnest(
            %(floors_queue)s::TEXT[],
            %(floors_priority)s::SMALLINT[],
            %(floors_below)s::SMALLINT[],
            %(floors_since)s::TIMESTAMP WITH TIME ZONE[]
        ) WITH ORDINALITY AS batch(queue, priority, below, since, ordinal)
    ),
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    ),
    hops_of_waiting_pairs(queue, priority, below, since) AS (
        /* due.hops_of_waiting_pairs-1: param_2, anon_2 */
    ),
    waiting_pairs AS (
        SELECT
            hops_of_waiting_pairs.queue AS queue,
            hops_of_waiting_pairs.priority AS priority,
            hops_of_waiting_pairs.since AS since
        FROM hops_of_waiting_pairs
        WHERE hops_of_waiting_pairs.priority < CAST(32767 AS SMALLINT)
    )
INSERT INTO sleeping_workers (worker_id, queue, wakes_at)
SELECT
    %(worker_id)s::UUID AS anon_1,
    asked.queue,
    least(
        (SELECT clock.now FROM clock) + %(longest_seconds)s * interval '1 second',
        (/* sleeping_workers.task_outbox-2: param_1, param_3 */)
    ) AS least_1
FROM (SELECT queues.queue AS queue FROM queues) AS asked
ON CONFLICT (worker_id, queue) DO UPDATE SET wakes_at = excluded.wakes_at
RETURNING CAST(
    EXTRACT(epoch FROM sleeping_workers.wakes_at - (SELECT clock.now FROM clock)) AS DOUBLE PRECISION
) AS seconds
