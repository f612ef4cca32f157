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
    queues(queue, upto) AS (/* claim.queues-1: min_1, min_2, min_3, min_4, anon_1 */),
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
    ),
    keyed_queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NOT NULL
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_5
            FROM task_outbox AS entry
            WHERE entry.queue > keyed_queues.queue AND entry.partition_key IS NOT NULL
        ) AS anon_3
        FROM keyed_queues
        WHERE keyed_queues.queue IS NOT NULL
    ),
    limited AS MATERIALIZED (/* due.limited-1: count_1 */)
SELECT min(moments.available_at) AS available_at
FROM (/* due.moments-2: param_1, param_3 */) AS moments
