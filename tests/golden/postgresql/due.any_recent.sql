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
    latest AS (
        SELECT execution_events.task_execution_id AS task_execution_id
        FROM execution_events
        ORDER BY execution_events.sequence_num DESC
        LIMIT 64
    ),
    recent AS (
        SELECT recent_queues.queue AS queue, due.partition_key AS partition_key
        FROM (/* due.open_queues-1: count_4, param_6 */) AS recent_queues
        JOIN LATERAL (/* due.due-2 */) AS due ON true
        UNION
        SELECT task_executions.queue AS queue, task_executions.partition_key AS partition_key
        FROM (/* due.open_queues-1: count_4, param_6 */) AS recent_queues
        JOIN task_executions ON task_executions.queue = recent_queues.queue
        WHERE
            task_executions.id = any(array((SELECT latest.task_execution_id FROM latest)))
            AND task_executions.partition_key IS NOT NULL
    )
SELECT
    (EXISTS (/* due.pairs-1: param_2, count_2 */))
        OR (EXISTS (/* due.oldest-2: param_4, param_5 */))
        OR (EXISTS (/* due.recent-1: param_7, param_8 */)) AS due,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT %(param_9)s::INTEGER
    ) IS NOT NULL AS by_key
