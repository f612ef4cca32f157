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
    SELECT keyed_queues.queue AS queue, '' AS "after", NULL AS upto, 0 AS ordinal
    FROM keyed_queues
    WHERE
        keyed_queues.queue IS NOT NULL
        AND (
            /* due.queue_settings-2: count_1, strftime_1, strftime_2, substr_1, substr_2, param_1, substr_3, substr_4, param_2, strftime_3, printf_1, strftime_4, strftime_5, substr_5, substr_6, param_3, substr_7, substr_8, param_4, strftime_6, printf_2 */
        ) IS NULL
        AND (
            SELECT keyed_due.id
            FROM task_outbox AS keyed_due
            WHERE
                keyed_due.queue = keyed_queues.queue
                AND keyed_due.partition_key IS NOT NULL
                AND keyed_due.available_at <= :now
            ORDER BY keyed_due.available_at
            LIMIT :param_5
            OFFSET 31
        ) IS NOT NULL
) AS crowded_queues
JOIN task_outbox AS head ON head.id = (
    SELECT head_entry.id
    FROM task_outbox AS head_entry
    WHERE head_entry.queue = crowded_queues.queue AND head_entry.partition_key > crowded_queues."after"
    ORDER BY head_entry.partition_key, head_entry.priority DESC, head_entry.position
    LIMIT :param_6
    OFFSET :param_7
)
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
JOIN task_outbox AS following ON following.id = (
    SELECT following_entry.id
    FROM task_outbox AS following_entry
    WHERE following_entry.queue = keys.queue AND following_entry.partition_key > keys.partition_key
    ORDER BY following_entry.partition_key, following_entry.priority DESC, following_entry.position
    LIMIT :param_8
    OFFSET :param_9
)
WHERE keys.n < 1000 AND (keys.upto IS NULL OR following.partition_key <= keys.upto)
