SELECT
    named.name,
    CAST(sum(pg_total_relation_size(coalesce(part.relid, named.oid))) AS BIGINT) AS size,
    CAST(sum(pg_stat_get_dead_tuples(coalesce(part.relid, named.oid))) AS BIGINT) AS dead_rows,
    CAST(sum(pg_indexes_size(coalesce(part.relid, named.oid))) AS BIGINT) AS index_size,
    CAST(sum(pg_stat_get_live_tuples(coalesce(part.relid, named.oid))) AS BIGINT) AS rows,
    max(
        greatest(
            pg_stat_get_last_vacuum_time(coalesce(part.relid, named.oid)),
            pg_stat_get_last_autovacuum_time(coalesce(part.relid, named.oid))
        )
    ) AS last_vacuumed_at
FROM (
    SELECT 'dead_letters' AS name, to_regclass(%(to_regclass_1)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'execution_events' AS name, to_regclass(%(to_regclass_2)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'idempotency_keys' AS name, to_regclass(%(to_regclass_3)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'inbox_messages' AS name, to_regclass(%(to_regclass_4)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'key_rates' AS name, to_regclass(%(to_regclass_5)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'maintenance_jobs' AS name, to_regclass(%(to_regclass_6)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'operator_actions' AS name, to_regclass(%(to_regclass_7)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'partition_claims' AS name, to_regclass(%(to_regclass_8)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'queue_samples' AS name, to_regclass(%(to_regclass_9)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'queue_settings' AS name, to_regclass(%(to_regclass_10)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'relay_messages' AS name, to_regclass(%(to_regclass_11)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'relay_shards' AS name, to_regclass(%(to_regclass_12)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'relays' AS name, to_regclass(%(to_regclass_13)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'schedule_ticks' AS name, to_regclass(%(to_regclass_14)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'sleeping_workers' AS name, to_regclass(%(to_regclass_15)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'task_batch_changes' AS name, to_regclass(%(to_regclass_16)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'task_batches' AS name, to_regclass(%(to_regclass_17)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'task_executions' AS name, to_regclass(%(to_regclass_18)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'task_leases' AS name, to_regclass(%(to_regclass_19)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'task_metrics' AS name, to_regclass(%(to_regclass_20)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'task_outbox' AS name, to_regclass(%(to_regclass_21)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'task_schedules' AS name, to_regclass(%(to_regclass_22)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'task_steps' AS name, to_regclass(%(to_regclass_23)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'task_subscriptions' AS name, to_regclass(%(to_regclass_24)s::VARCHAR) AS oid
    UNION ALL
    SELECT 'workers' AS name, to_regclass(%(to_regclass_25)s::VARCHAR) AS oid
) AS named
LEFT OUTER JOIN LATERAL pg_partition_tree(named.oid) AS part(relid) ON true
WHERE named.oid IS NOT NULL
GROUP BY named.name
ORDER BY named.name
