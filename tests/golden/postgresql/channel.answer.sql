WITH answers AS (
    SELECT batch.queue AS queue, batch.call AS call, batch.ordinal AS ordinal
    FROM unnest(%(answers_queue)s::TEXT[], %(answers_call)s::BIGINT[]) WITH ORDINALITY AS batch(
        queue,
        call,
        ordinal
    )
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
    concat(concat('-', answers.call, '@' || CAST(%(moment)s AS TEXT)), ' ', answers.queue)
) AS told
FROM answers
WHERE current_setting('outboxq.notify', true) IS DISTINCT FROM 'off'
