WITH RECURSIVE
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
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    hops_of_pairs(queue, priority, below, since) AS (/* due.hops_of_pairs-1: count_1, param_1, anon_1 */),
    pairs AS (
        SELECT hops_of_pairs.queue AS queue, hops_of_pairs.priority AS priority, hops_of_pairs.since AS since
        FROM hops_of_pairs
        WHERE hops_of_pairs.priority < CAST(32767 AS SMALLINT)
    ),
    topics AS (
        SELECT batch.topic AS topic, batch.ordinal AS ordinal
        FROM unnest(%(topics_topic)s::TEXT[]) WITH ORDINALITY AS batch(topic, ordinal)
    ),
    oldest AS (/* due.oldest-3: count_3, param_3 */),
    keys(place, queue, upto, task_execution_id, partition_key, available_at, topic, n) AS (
        /* due.keys-3: count_4, param_6, param_7, anon_2, param_8 */
    )
SELECT
    (EXISTS (/* due.pairs-1: param_2, count_2 */))
        OR (EXISTS (/* due.oldest-2: param_4, param_5 */))
        OR (EXISTS (/* due.keys-2: param_9 */)) AS due,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT %(param_10)s::INTEGER
    ) IS NOT NULL AS by_key
