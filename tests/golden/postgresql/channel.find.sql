SELECT
    CAST(pg_catalog.pg_class.oid AS BIGINT) AS outbox,
    CASE
        WHEN (pg_catalog.pg_namespace.nspname = 'public') THEN 'task_ready'
        ELSE CAST(CAST(concat('task_ready_', pg_catalog.pg_namespace.nspname) AS name) AS TEXT)
    END AS channel,
    EXISTS (
        SELECT pg_catalog.pg_trigger.tgname
        FROM pg_catalog.pg_trigger
        WHERE
            pg_catalog.pg_trigger.tgrelid = to_regclass(%(to_regclass_1)s)
            AND pg_catalog.pg_trigger.tgname = 'task_outbox_notify'
            AND pg_catalog.pg_trigger.tgenabled IN ('O', 'A')
    ) AS fires
FROM pg_catalog.pg_class, pg_catalog.pg_namespace
WHERE
    pg_catalog.pg_class.oid = to_regclass(%(to_regclass_1)s)
    AND pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace
