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
    SELECT deep.queue AS queue, '' AS "after", NULL AS upto, 0 AS ordinal
    FROM (
        SELECT due_entries.queue AS queue
        FROM due_entries
        GROUP BY due_entries.queue
        HAVING count(*) >= 1000
    ) AS deep
) AS range
JOIN task_outbox AS head ON head.id = (
    SELECT head_entry.id
    FROM task_outbox AS head_entry
    WHERE head_entry.queue = range.queue AND head_entry.partition_key > range."after"
    ORDER BY head_entry.partition_key, head_entry.priority DESC, head_entry.position
    LIMIT :param_1
    OFFSET :param_2
)
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
JOIN task_outbox AS following ON following.id = (
    SELECT following_entry.id
    FROM task_outbox AS following_entry
    WHERE following_entry.queue = hopped.queue AND following_entry.partition_key > hopped.partition_key
    ORDER BY following_entry.partition_key, following_entry.priority DESC, following_entry.position
    LIMIT :param_3
    OFFSET :param_4
)
WHERE hopped.n < 1000 AND (hopped.upto IS NULL OR following.partition_key <= hopped.upto)
