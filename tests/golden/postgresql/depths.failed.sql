SELECT listed.queue, count(*) AS failed
FROM (
    SELECT dead_letters.queue AS queue
    FROM dead_letters
    LIMIT %(most)s::BIGINT
) AS listed
GROUP BY listed.queue
