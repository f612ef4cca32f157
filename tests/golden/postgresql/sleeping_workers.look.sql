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
    queues(queue, upto) AS (/* claim.queues-1: min_1, min_2, min_3, min_4, anon_1 */),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    hops_of_pairs(queue, priority, below, since) AS (/* due.hops_of_pairs-1: count_1, param_1, anon_2 */),
    pairs AS (
        SELECT hops_of_pairs.queue AS queue, hops_of_pairs.priority AS priority, hops_of_pairs.since AS since
        FROM hops_of_pairs
        WHERE hops_of_pairs.priority < CAST(32767 AS SMALLINT)
    ),
    topics AS (
        SELECT batch.topic AS topic, batch.ordinal AS ordinal
        FROM unnest(%(topics_topic)s::TEXT[]) WITH ORDINALITY AS batch(topic, ordinal)
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
    oldest AS (/* due.oldest-1: count_3, param_3 */),
    keys(place, queue, upto, task_execution_id, partition_key, available_at, topic, n) AS (
        /* due.keys-1: count_4, param_6, param_7, anon_4, param_8 */
    ),
    hops_of_waiting_pairs(queue, priority, below, since) AS (
        /* due.hops_of_waiting_pairs-1: param_11, anon_5 */
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
    pg_snapshot_xmin(pg_current_snapshot()) >= CAST(CAST(%(horizon)s::BIGINT AS TEXT) AS xid8) AS settled,
    (EXISTS (/* due.pairs-1: param_2, count_2 */))
        OR (EXISTS (/* due.oldest-2: param_4, param_5 */))
        OR (EXISTS (/* due.keys-2: param_9 */)) AS due,
    CAST(
        EXTRACT(
            epoch
            FROM (
                SELECT min(moments.available_at) AS available_at
                FROM (/* due.moments-1: param_10, param_12 */) AS moments
            ) - (SELECT clock.now FROM clock)
        ) AS DOUBLE PRECISION
    ) AS seconds,
    CAST(EXTRACT(epoch FROM (SELECT clock.now FROM clock)) AS DOUBLE PRECISION) AS now,
    pg_stat_get_dead_tuples(to_regclass(%(to_regclass_1)s::VARCHAR)) > 2000
        AND (
            SELECT mine.queue
            FROM queue_settings AS mine
            WHERE
                mine.concurrency_limit IS NOT NULL
                OR mine.rate_limit IS NOT NULL
                OR mine.key_concurrency IS NOT NULL
                OR mine.key_rate_limit IS NOT NULL
            LIMIT %(param_13)s::INTEGER
        ) IS NULL AS crowded,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT %(param_14)s::INTEGER
    ) IS NOT NULL AS by_key
