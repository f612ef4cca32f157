WITH RECURSIVE
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NULL
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_1
            FROM task_outbox AS entry
            WHERE entry.queue > queues.queue AND entry.partition_key IS NULL
        ) AS anon_2
        FROM queues
        WHERE queues.queue IS NOT NULL
    ),
    waiting_pairs(queue, priority) AS (/* due.waiting_pairs-1: param_2, param_3, anon_3 */),
    keyed_queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NOT NULL
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_2
            FROM task_outbox AS entry
            WHERE entry.queue > keyed_queues.queue AND entry.partition_key IS NOT NULL
        ) AS anon_4
        FROM keyed_queues
        WHERE keyed_queues.queue IS NOT NULL
    )
INSERT INTO sleeping_workers (worker_id, queue, wakes_at)
SELECT
    %(worker_id)s::UUID AS anon_1,
    asked.queue,
    least(
        (SELECT clock.now FROM clock) + %(longest_seconds)s * interval '1 second',
        (/* sleeping_workers.task_outbox-1: param_1, param_4 */)
    ) AS least_1
FROM (SELECT '' AS queue) AS asked
ON CONFLICT (worker_id, queue) DO UPDATE SET wakes_at = excluded.wakes_at
RETURNING CAST(
    EXTRACT(epoch FROM sleeping_workers.wakes_at - (SELECT clock.now FROM clock)) AS DOUBLE PRECISION
) AS seconds
