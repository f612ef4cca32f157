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
        SELECT mine.queue
        FROM queue_settings AS mine
        WHERE mine.queue = queues.queue AND mine.paused_at IS NOT NULL
    ) IS NULL
UNION ALL
SELECT
    waiting_pairs.queue AS queue,
    (
        SELECT entry.priority
        FROM task_outbox AS entry
        WHERE
            entry.queue = waiting_pairs.queue
            AND entry.partition_key IS NULL
            AND entry.priority < waiting_pairs.priority
        ORDER BY entry.priority DESC
        LIMIT :param_3
        OFFSET :param_4
    ) AS anon_1
FROM waiting_pairs
WHERE waiting_pairs.priority IS NOT NULL
