SELECT listed.queue, listed.task_name, count(*) AS failed
FROM (
    SELECT dead_letters.queue AS queue, dead_letters.task_name AS task_name
    FROM dead_letters
    LIMIT %(most)s::BIGINT
) AS listed
GROUP BY listed.queue, listed.task_name
