SELECT CASE
    WHEN (pg_catalog.pg_namespace.nspname = 'public') THEN 'task_ready'
    ELSE CAST(CAST(concat('task_ready_', pg_catalog.pg_namespace.nspname) AS name) AS TEXT)
END AS channel
FROM pg_catalog.pg_namespace, pg_catalog.pg_class
WHERE
    pg_catalog.pg_class.oid = CAST(%(outbox)s::BIGINT AS OID)
    AND pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace
