SELECT letters.queue, letters.task_name, count(*) AS failed
FROM (
    SELECT dead_letters.queue AS queue, dead_letters.task_name AS task_name
    FROM dead_letters
    LIMIT :most
    OFFSET :param_1
) AS letters
GROUP BY letters.queue, letters.task_name
