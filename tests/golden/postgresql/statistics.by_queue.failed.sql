WITH queues AS (
    SELECT batch.queue AS queue, batch.ordinal AS ordinal
    FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
)
SELECT dead_letters.queue, count(*) AS failed
FROM dead_letters
WHERE
    %(every_queue)s
    OR dead_letters.queue = any(array((SELECT queues.queue FROM queues)))
GROUP BY dead_letters.queue
