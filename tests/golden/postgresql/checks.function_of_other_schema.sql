SELECT DISTINCT pg_catalog.pg_proc.proname AS id
FROM pg_catalog.pg_proc
JOIN (
    SELECT
        pg_catalog.pg_class.relnamespace AS relnamespace,
        concat(' ', quote_ident(pg_catalog.pg_namespace.nspname)) AS name
    FROM pg_catalog.pg_class
    JOIN pg_catalog.pg_namespace ON pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace
    WHERE pg_catalog.pg_class.oid = to_regclass(%(to_regclass_1)s)
) AS ours ON pg_catalog.pg_proc.pronamespace = ours.relnamespace
    AND pg_catalog.pg_proc.proname IN ('outboxq_enqueue', 'outboxq_backlog')
    OR pg_catalog.pg_proc.oid IN (
        SELECT pg_catalog.pg_trigger.tgfoid
        FROM
            pg_catalog.pg_trigger,
            (
                SELECT to_regclass(%(to_regclass_2)s) AS oid, 'task_executions_batch' AS name
                UNION ALL
                SELECT to_regclass(%(to_regclass_3)s) AS oid, 'task_batch_changes_count' AS name
                UNION ALL
                SELECT to_regclass(%(to_regclass_4)s) AS oid, 'task_batches_advance' AS name
                UNION ALL
                SELECT to_regclass(%(to_regclass_5)s) AS oid, 'relay_messages_notify' AS name
            ) AS triggers
        WHERE pg_catalog.pg_trigger.tgrelid = triggers.oid AND pg_catalog.pg_trigger.tgname = triggers.name
    )
WHERE greatest(
    strpos(pg_catalog.pg_proc.prosrc, ours.name || '.task_outbox'),
    strpos(pg_catalog.pg_proc.prosrc, ours.name || '.task_batches'),
    strpos(pg_catalog.pg_proc.prosrc, ours.name || '.task_batch_changes'),
    strpos(pg_catalog.pg_proc.prosrc, ours.name || '.relay_shards')
) = 0
