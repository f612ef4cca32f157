WITH RECURSIVE
    topics AS MATERIALIZED (
        SELECT topics_rows."key" AS ordinal, topics_rows.value AS topic
        FROM json_each(:topics) AS topics_rows
    ),
    limited AS (
        SELECT CAST(:queue AS TEXT) AS queue,
        CAST(:key_concurrency AS INTEGER) AS key_concurrency,
        CAST(:blocked_after AS TEXT) AS blocked_after,
        CAST(:blocked_until AS TEXT) AS blocked_until
    ),
    hopped(place, queue, upto, task_execution_id, partition_key, available_at, topic, n) AS (
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
            SELECT
                limited.queue AS queue,
                CAST(:after AS TEXT) AS "after",
                CAST(:upto AS TEXT) AS upto,
                0 AS ordinal
            FROM limited
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
            WHERE
                following_entry.queue = hopped.queue
                AND following_entry.partition_key > hopped.partition_key
            ORDER BY following_entry.partition_key, following_entry.priority DESC, following_entry.position
            LIMIT :param_3
            OFFSET :param_4
        )
        WHERE hopped.n < :budget AND (hopped.upto IS NULL OR following.partition_key <= hopped.upto)
    ),
    running AS MATERIALIZED (/* limits.running-1 */)
SELECT
    state.queue,
    state.partition_key,
    state.is_concurrency,
    state.running,
    state.full_at,
    state.free,
    state.n
FROM (/* due.far-1 */) AS state
WHERE
    state.free = 1
    OR state.n = (SELECT max(hopped.n) AS max_1 FROM hopped)
ORDER BY state.n
