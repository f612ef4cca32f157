SELECT keyed_queues.queue AS queue, '' AS after, NULL AS upto, 0 AS ordinal
FROM keyed_queues
WHERE
    keyed_queues.queue IS NOT NULL
    AND (/* due.queue_settings-2: count_1 */) IS NULL
    AND (
        SELECT keyed_due.id
        FROM task_outbox AS keyed_due
        WHERE
            keyed_due.queue = keyed_queues.queue
            AND keyed_due.partition_key IS NOT NULL
            AND keyed_due.available_at <= (SELECT clock.now FROM clock)
        ORDER BY keyed_due.available_at
        LIMIT %(param_1)s::INTEGER
    ) IS NOT NULL
