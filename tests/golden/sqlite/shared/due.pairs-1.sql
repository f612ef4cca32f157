SELECT
    queues.queue AS queue,
    (
        SELECT entry.priority
        FROM task_outbox AS entry
        WHERE entry.queue = queues.queue AND entry.partition_key IS NULL
        ORDER BY entry.priority DESC
        LIMIT :param_1
        OFFSET :param_2
    ) AS priority
FROM queues
WHERE
    queues.queue IS NOT NULL
    AND (
        /* due.queue_settings-1: count_1, strftime_1, strftime_2, substr_1, substr_2, param_3, substr_3, substr_4, param_4, strftime_3, printf_1, strftime_4, strftime_5, substr_5, substr_6, param_5, substr_7, substr_8, param_6, strftime_6, printf_2 */
    ) IS NULL
UNION ALL
SELECT
    pairs.queue AS queue,
    (
        SELECT entry.priority
        FROM task_outbox AS entry
        WHERE entry.queue = pairs.queue AND entry.partition_key IS NULL AND entry.priority < pairs.priority
        ORDER BY entry.priority DESC
        LIMIT :param_7
        OFFSET :param_8
    ) AS anon_1
FROM pairs
WHERE pairs.priority IS NOT NULL
