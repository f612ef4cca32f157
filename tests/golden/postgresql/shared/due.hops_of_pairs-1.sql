SELECT starts.queue AS queue, starts.priority AS priority, starts.below AS below, starts.since AS since
FROM (
    SELECT
        floors.queue AS queue,
        floors.priority AS priority,
        floors.below AS below,
        coalesce(floors.since, '-infinity') AS since
    FROM floors
    UNION ALL
    SELECT
        queues.queue AS queue,
        CAST(32767 AS SMALLINT) AS "32767",
        CAST(-32768 AS SMALLINT) AS "-32768",
        '-infinity'
    FROM queues
    WHERE
        queues.queue IS NOT NULL
        AND queues.queue != all(array((SELECT floors.queue FROM floors)))
        AND (/* due.queue_settings-1: count_1 */) IS NULL
) AS starts
UNION ALL
SELECT
    hops_of_pairs.queue AS queue,
    (
        SELECT entry.priority
        FROM task_outbox AS entry
        WHERE
            entry.queue = hops_of_pairs.queue
            AND entry.partition_key IS NULL
            AND entry.priority < hops_of_pairs.priority
            AND entry.priority > hops_of_pairs.below
        ORDER BY entry.priority DESC
        LIMIT %(param_1)s::INTEGER
    ) AS anon_1,
    hops_of_pairs.below AS below,
    '-infinity'
FROM hops_of_pairs
WHERE hops_of_pairs.priority IS NOT NULL
