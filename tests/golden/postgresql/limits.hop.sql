WITH RECURSIVE
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    topics AS (
        SELECT batch.topic AS topic, batch.ordinal AS ordinal
        FROM unnest(%(topics_topic)s::TEXT[]) WITH ORDINALITY AS batch(topic, ordinal)
    ),
    limited AS (
        SELECT CAST(%(queue)s::VARCHAR AS TEXT) AS queue,
        CAST(%(key_concurrency)s::INTEGER AS INTEGER) AS key_concurrency,
        CAST(%(blocked_after)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE) AS blocked_after,
        CAST(%(blocked_until)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE) AS blocked_until
    ),
    hopped(place, queue, upto, task_execution_id, partition_key, available_at, topic, n) AS (
        SELECT
            range.ordinal AS place,
            range.queue AS queue,
            range.upto AS upto,
            head.task_execution_id AS task_execution_id,
            head.partition_key AS partition_key,
            head.available_at AS available_at,
            head.topic AS topic,
            1 AS n
        FROM (
            SELECT
                limited.queue AS queue,
                CAST(%(after)s::VARCHAR AS TEXT) AS after,
                CAST(%(upto)s::VARCHAR AS TEXT) AS upto,
                0 AS ordinal
            FROM limited
        ) AS range
        JOIN LATERAL (/* due.head-2: param_1 */) AS head ON true
        WHERE range.upto IS NULL OR head.partition_key <= range.upto
        UNION ALL
        SELECT
            hopped.place AS place,
            hopped.queue AS queue,
            hopped.upto AS upto,
            following.task_execution_id AS task_execution_id,
            following.partition_key AS partition_key,
            following.available_at AS available_at,
            following.topic AS topic,
            hopped.n + 1 AS anon_1
        FROM hopped
        JOIN LATERAL (/* due.following-2: param_2 */) AS following ON true
        WHERE
            hopped.n < %(budget)s::INTEGER
            AND (hopped.upto IS NULL OR following.partition_key <= hopped.upto)
    ),
    running AS MATERIALIZED (/* limits.running-1 */)
SELECT
    state.queue,
    state.partition_key,
    state.is_concurrency,
    state.running,
    state.full_at,
    state.free,
    state.n
FROM (/* due.far-1 */) AS state
WHERE
    state.free
    OR state.n = (SELECT max(hopped.n) AS max_1 FROM hopped)
ORDER BY state.n
