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
    limited AS MATERIALIZED (/* due.limited-1: count_5 */),
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
        /* due.hopped-1: param_10, anon_5, param_11 */
    )
SELECT
    (EXISTS (/* due.pairs-1: param_2, count_2 */))
        OR (EXISTS (/* due.oldest-2: param_4, param_5 */))
        OR (EXISTS (/* due.keys-2: param_9 */))
        OR (EXISTS (/* due.limited-2 */))
        OR (EXISTS (/* due.key_rates-1 */))
        OR (EXISTS (/* due.key_rates-2 */))
        OR (EXISTS (/* due.key_rates-3: param_12 */)) AS due,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT %(param_13)s::INTEGER
    ) IS NOT NULL AS by_key
