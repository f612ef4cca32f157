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
        /* due.hops_of_waiting_pairs-1: param_3, anon_1 */
    ),
    waiting_pairs AS (
        SELECT
            hops_of_waiting_pairs.queue AS queue,
            hops_of_waiting_pairs.priority AS priority,
            hops_of_waiting_pairs.since AS since
        FROM hops_of_waiting_pairs
        WHERE hops_of_waiting_pairs.priority < CAST(32767 AS SMALLINT)
    )
SELECT
    min(moments.available_at) AS available_at,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT %(param_1)s::INTEGER
    ) IS NOT NULL AS by_key
FROM (/* due.moments-3: param_2, param_4 */) AS moments
