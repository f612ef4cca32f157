WITH RECURSIVE
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    ),
    waiting_pairs(queue, priority) AS (/* due.waiting_pairs-1: param_3, param_4, anon_1 */)
SELECT
    min(moments.available_at) AS available_at,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT %(param_1)s::INTEGER
    ) IS NOT NULL AS by_key
FROM (/* due.moments-3: param_2, param_5 */) AS moments
