SELECT
    crowded_queues.ordinal AS place,
    crowded_queues.queue AS queue,
    crowded_queues.upto AS upto,
    head.task_execution_id AS task_execution_id,
    head.partition_key AS partition_key,
    head.available_at AS available_at,
    head.topic AS topic,
    1 AS n
FROM (
    SELECT queues.queue AS queue, '' AS after, NULL AS upto, 0 AS ordinal
    FROM queues
    WHERE
        queues.queue IS NOT NULL
        AND (/* due.queue_settings-1: count_1 */) IS NULL
        AND (
            SELECT keyed_due.id
            FROM task_outbox AS keyed_due
            WHERE
                keyed_due.queue = queues.queue
                AND keyed_due.partition_key IS NOT NULL
                AND keyed_due.available_at <= (SELECT clock.now FROM clock)
            ORDER BY keyed_due.available_at
            LIMIT %(param_1)s::INTEGER
            OFFSET 31
        ) IS NOT NULL
) AS crowded_queues
JOIN LATERAL (/* due.head-1: param_2 */) AS head ON true
WHERE crowded_queues.upto IS NULL OR head.partition_key <= crowded_queues.upto
UNION ALL
SELECT
    keys.place AS place,
    keys.queue AS queue,
    keys.upto AS upto,
    following.task_execution_id AS task_execution_id,
    following.partition_key AS partition_key,
    following.available_at AS available_at,
    following.topic AS topic,
    keys.n + 1 AS anon_1
FROM keys
JOIN LATERAL (/* due.following-1: param_3 */) AS following ON true
WHERE keys.n < 1000 AND (keys.upto IS NULL OR following.partition_key <= keys.upto)
