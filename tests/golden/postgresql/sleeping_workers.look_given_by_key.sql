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
    ),
    limited AS MATERIALIZED (/* due.limited-3: count_5 */),
    due_entries AS MATERIALIZED (/* due.due_entries-1 */),
    due_keys AS (
        SELECT DISTINCT due_entries.queue AS queue, due_entries.partition_key AS partition_key
        FROM due_entries
        WHERE
            %(any_topic)s
            OR (
                EXISTS (
                    SELECT topics.topic
                    FROM topics
                    WHERE
                        due_entries.topic = topics.topic
                        OR substr(topics.topic, length(topics.topic), 1) = '*'
                        AND substr(due_entries.topic, 1, length(topics.topic) - 1) = substr(
                            topics.topic,
                            1,
                            length(topics.topic) - 1
                        )
                )
            )
    ),
    running AS MATERIALIZED (/* due.running-1 */),
    hopped(place, queue, upto, task_execution_id, partition_key, available_at, topic, n) AS (
        /* due.hopped-1: param_10, anon_3, param_11 */
    ),
    hops_of_waiting_pairs(queue, priority, below, since) AS (
        /* due.hops_of_waiting_pairs-1: param_14, anon_4 */
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
        OR (EXISTS (/* due.keys-2: param_9 */))
        OR (EXISTS (/* due.limited-2 */))
        OR (EXISTS (/* due.key_rates-1 */))
        OR (EXISTS (/* due.key_rates-2 */))
        OR (EXISTS (/* due.key_rates-3: param_12 */)) AS due,
    CAST(
        EXTRACT(
            epoch
            FROM (
                SELECT min(moments.available_at) AS available_at
                FROM (/* due.moments-4: param_13, param_15 */) AS moments
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
            LIMIT %(param_16)s::INTEGER
        ) IS NULL AS crowded,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT %(param_17)s::INTEGER
    ) IS NOT NULL AS by_key
