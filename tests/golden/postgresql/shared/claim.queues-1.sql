SELECT starts.queue AS queue, starts.upto AS upto
FROM (
    SELECT
        CASE
            WHEN (start.upto IS NULL) THEN (
                SELECT min(entry.queue) AS min_1
                FROM task_outbox AS entry
                WHERE entry.partition_key IS NULL
            )
            ELSE (
                SELECT min(entry.queue) AS min_2
                FROM task_outbox AS entry
                WHERE entry.partition_key IS NULL AND entry.queue < start.upto
            )
        END AS queue,
        start.upto AS upto
    FROM (
        SELECT min(known.queue) AS upto
        FROM (SELECT DISTINCT floors.queue AS queue FROM floors) AS known
    ) AS start
    UNION ALL
    SELECT known.queue AS queue, lead(known.queue) OVER (ORDER BY known.queue) AS upto
    FROM (SELECT DISTINCT floors.queue AS queue FROM floors) AS known
) AS starts
UNION ALL
SELECT
    CASE
        WHEN (queues.upto IS NULL) THEN (
            SELECT min(entry.queue) AS min_3
            FROM task_outbox AS entry
            WHERE entry.partition_key IS NULL AND entry.queue > queues.queue
        )
        ELSE (
            SELECT min(entry.queue) AS min_4
            FROM task_outbox AS entry
            WHERE entry.partition_key IS NULL AND entry.queue > queues.queue AND entry.queue < queues.upto
        )
    END AS anon_1,
    queues.upto AS upto
FROM queues
WHERE queues.queue IS NOT NULL
