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
        OFFSET :param_6
    ) IS NOT NULL
