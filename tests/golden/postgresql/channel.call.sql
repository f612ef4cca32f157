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
                WHEN (count(*) > 0) THEN concat(
                    '2,',
                    txid_current(),
                    ',',
                    string_agg(CAST(called.session AS TEXT), ',' ORDER BY called.turn)
                )
                ELSE '*'
            END AS anon_2
            FROM (
                SELECT in_turn.session AS session, in_turn.turn AS turn
                FROM (
                    SELECT
                        sleeping_workers.session AS session,
                        hashint8extended(sleeping_workers.session, txid_current()) AS turn
                    FROM sleeping_workers
                    WHERE
                        (sleeping_workers.queue = queues.queue OR sleeping_workers.queue = '')
                        AND sleeping_workers.wakes_at > (SELECT clock.now FROM clock)
                        AND sleeping_workers.session IS NOT NULL
                    ORDER BY turn
                    LIMIT 32
                ) AS in_turn
                WHERE NOT pg_try_advisory_xact_lock_shared(in_turn.session)
                LIMIT 3
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
