SELECT dead_letters.queue, count(*) AS dead_letters
FROM dead_letters
WHERE dead_letters.queue LIKE 'relay.%'
GROUP BY dead_letters.queue
