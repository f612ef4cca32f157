SELECT
    queues.queue AS queue,
    (
        SELECT entry.priority
        FROM task_outbox AS entry
        WHERE entry.queue = queues.queue AND entry.partition_key IS NULL
        ORDER BY entry.priority DESC
        LIMIT %(param_1)s::INTEGER
    ) AS priority
FROM queues
WHERE queues.queue IS NOT NULL
UNION ALL
SELECT
    pairs.queue AS queue,
    (
        SELECT entry.priority
        FROM task_outbox AS entry
        WHERE entry.queue = pairs.queue AND entry.partition_key IS NULL AND entry.priority < pairs.priority
        ORDER BY entry.priority DESC
        LIMIT %(param_2)s::INTEGER
    ) AS anon_1
FROM pairs
WHERE pairs.priority IS NOT NULL
