WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    queues AS (
        SELECT batch.queue AS queue, batch.ordinal AS ordinal
        FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)
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
    concat(
        (
            SELECT CASE
                WHEN (count(*) > 0) THEN concat('2,', string_agg(called.name, ',' ORDER BY called.turn))
                ELSE '*'
            END AS anon_2
            FROM (
                SELECT
                    right(CAST(sleeping_workers.worker_id AS TEXT), 12) AS name,
                    uuid_hash_extended(sleeping_workers.worker_id, txid_current()) AS turn
                FROM sleeping_workers
                WHERE
                    (sleeping_workers.queue = queues.queue OR sleeping_workers.queue = '')
                    AND sleeping_workers.wakes_at > (SELECT clock.now FROM clock)
                    AND sleeping_workers.any_topic
                ORDER BY uuid_hash_extended(sleeping_workers.worker_id, txid_current())
                LIMIT 5
            ) AS called
        ),
        ' ',
        queues.queue
    )
) AS told
FROM queues
WHERE
    current_setting('outboxq.notify', true) IS DISTINCT FROM 'off'
    AND (
        EXISTS (
            SELECT sleeping_workers.queue
            FROM sleeping_workers
            WHERE
                (sleeping_workers.queue = queues.queue OR sleeping_workers.queue = '')
                AND sleeping_workers.wakes_at > (SELECT clock.now FROM clock)
        )
    )
