WITH RECURSIVE
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NULL
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_1
            FROM task_outbox AS entry
            WHERE entry.queue > queues.queue AND entry.partition_key IS NULL
        ) AS anon_1
        FROM queues
        WHERE queues.queue IS NOT NULL
    ),
    waiting_pairs(queue, priority) AS (/* due.waiting_pairs-1: param_3, param_4, anon_2 */),
    keyed_queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NOT NULL
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_2
            FROM task_outbox AS entry
            WHERE entry.queue > keyed_queues.queue AND entry.partition_key IS NOT NULL
        ) AS anon_3
        FROM keyed_queues
        WHERE keyed_queues.queue IS NOT NULL
    )
SELECT
    min(moments.available_at) AS available_at,
    (
        SELECT by_key.queue
        FROM queue_settings AS by_key
        WHERE by_key.key_concurrency IS NOT NULL OR by_key.key_rate_limit IS NOT NULL
        LIMIT %(param_1)s::INTEGER
    ) IS NOT NULL AS by_key
FROM (/* due.moments-1: param_2, param_5 */) AS moments
