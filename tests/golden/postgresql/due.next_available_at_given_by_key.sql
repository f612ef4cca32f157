WITH RECURSIVE
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    ),
    waiting_pairs(queue, priority) AS (/* due.waiting_pairs-1: param_2, param_3, anon_1 */),
    limited AS MATERIALIZED (/* due.limited-3: count_1 */)
SELECT min(moments.available_at) AS available_at
FROM (/* due.moments-4: param_1, param_4 */) AS moments
