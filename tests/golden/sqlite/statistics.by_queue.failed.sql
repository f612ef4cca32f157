WITH queues AS MATERIALIZED (
    SELECT queues_rows."key" AS ordinal, queues_rows.value AS queue
    FROM json_each(:queues) AS queues_rows
)
SELECT dead_letters.queue, count(*) AS failed
FROM dead_letters
WHERE
    :every_queue = 1
    OR dead_letters.queue IN (SELECT queues.queue FROM queues)
GROUP BY dead_letters.queue
