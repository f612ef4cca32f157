SELECT
    range.ordinal AS place,
    range.queue AS queue,
    range.upto AS upto,
    head.task_execution_id AS task_execution_id,
    head.partition_key AS partition_key,
    head.available_at AS available_at,
    head.topic AS topic,
    1 AS n
FROM (
    SELECT deep.queue AS queue, '' AS after, NULL AS upto, 0 AS ordinal
    FROM (
        SELECT due_entries.queue AS queue
        FROM due_entries
        GROUP BY due_entries.queue
        HAVING count(*) >= 1000
    ) AS deep
) AS range
JOIN LATERAL (/* due.head-2: param_1 */) AS head ON true
WHERE range.upto IS NULL OR head.partition_key <= range.upto
UNION ALL
SELECT
    hopped.place AS place,
    hopped.queue AS queue,
    hopped.upto AS upto,
    following.task_execution_id AS task_execution_id,
    following.partition_key AS partition_key,
    following.available_at AS available_at,
    following.topic AS topic,
    hopped.n + 1 AS anon_1
FROM hopped
JOIN LATERAL (/* due.following-2: param_2 */) AS following ON true
WHERE hopped.n < 1000 AND (hopped.upto IS NULL OR following.partition_key <= hopped.upto)
