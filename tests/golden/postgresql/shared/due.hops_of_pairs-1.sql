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
) AS starts
WHERE (
    SELECT mine.queue
    FROM queue_settings AS mine
    WHERE
        mine.queue = starts.queue
        AND (
            mine.paused_at IS NOT NULL
                OR mine.key_concurrency IS NOT NULL
                OR mine.key_rate_limit IS NOT NULL
                OR mine.concurrency_limit IS NOT NULL
                AND mine.concurrency_limit <= (
                    SELECT count(*) AS count_1
                    FROM task_leases AS lease
                    WHERE lease.queue = mine.queue
                )
                OR CASE
                    WHEN (
                        mine.rate_full_at <= (SELECT clock.now FROM clock) + mine.rate_seconds * 2 * interval '1 second'
                    ) THEN mine.rate_full_at + (
                        -(mine.rate_seconds - mine.rate_seconds / CAST(mine.rate_limit AS NUMERIC))
                    ) * interval '1 second'
                END > (SELECT clock.now FROM clock)
        )
) IS NULL
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
