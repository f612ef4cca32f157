WITH
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    )
SELECT pg_notify(
    (
        SELECT CASE
            WHEN (pg_catalog.pg_namespace.nspname = 'public') THEN 'task_ready'
            ELSE CAST(CAST(concat('task_ready_', pg_catalog.pg_namespace.nspname) AS name) AS TEXT)
        END AS anon_1
        FROM pg_catalog.pg_namespace, pg_catalog.pg_class
        WHERE
            pg_catalog.pg_class.oid = to_regclass(%(to_regclass_1)s)
            AND pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace
    ),
    concat('*', ' ', queues.queue)
) AS told
FROM queues
WHERE
    current_setting('outboxq.notify', true) IS DISTINCT FROM 'off'
    AND (
        current_setting('outboxq.notify', true) = 'always'
            OR current_setting('transaction_isolation') != 'read committed'
            OR (
                EXISTS (
                    SELECT sleeping_workers.queue
                    FROM sleeping_workers
                    WHERE
                        (sleeping_workers.queue = queues.queue OR sleeping_workers.queue = '')
                        AND sleeping_workers.wakes_at > (SELECT clock.now FROM clock)
                )
            )
    )
