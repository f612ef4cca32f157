SELECT letters.queue, count(*) AS failed
FROM (
    SELECT dead_letters.queue AS queue
    FROM dead_letters
    LIMIT %(most)s::BIGINT
) AS letters
GROUP BY letters.queue
