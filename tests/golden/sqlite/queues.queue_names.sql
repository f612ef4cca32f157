WITH RECURSIVE
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
    keyed_queues(queue) AS (
        SELECT min(task_outbox.queue) AS queue
        FROM task_outbox
        WHERE task_outbox.partition_key IS NOT NULL
        UNION ALL
        SELECT (
            SELECT min(entry.queue) AS min_2
            FROM task_outbox AS entry
            WHERE entry.queue > keyed_queues.queue AND entry.partition_key IS NOT NULL
        ) AS anon_2
        FROM keyed_queues
        WHERE keyed_queues.queue IS NOT NULL
    )
SELECT DISTINCT names.queue
FROM (
    SELECT queues.queue AS queue
    FROM queues
    UNION ALL
    SELECT keyed_queues.queue AS queue
    FROM keyed_queues
    UNION ALL
    SELECT task_leases.queue AS queue
    FROM task_leases
    UNION ALL
    SELECT queue_settings.queue AS queue
    FROM queue_settings
    UNION ALL
    SELECT letters.queue AS queue
    FROM (
        SELECT dead_letters.queue AS queue
        FROM dead_letters
        LIMIT :most
        OFFSET :param_1
    ) AS letters
) AS names
WHERE names.queue IS NOT NULL
ORDER BY names.queue
