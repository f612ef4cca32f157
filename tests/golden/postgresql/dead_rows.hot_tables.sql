SELECT
    pg_catalog.pg_class.relname AS name,
    pg_stat_get_live_tuples(pg_catalog.pg_class.oid) AS rows,
    pg_stat_get_dead_tuples(pg_catalog.pg_class.oid) AS dead_rows,
    greatest(
        pg_stat_get_last_vacuum_time(pg_catalog.pg_class.oid),
        pg_stat_get_last_autovacuum_time(pg_catalog.pg_class.oid)
    ) AS last_vacuumed_at,
    current_setting('autovacuum') = 'on'
        AND current_setting('track_counts') = 'on'
        AND NOT coalesce(
            pg_catalog.pg_class.reloptions && '{autovacuum_enabled=false,autovacuum_enabled=off,autovacuum_enabled=no,autovacuum_enabled=0}'::text[],
            false
        ) AS autovacuum
FROM pg_catalog.pg_class
WHERE pg_catalog.pg_class.oid IN (
    to_regclass(%(to_regclass_1)s),
    to_regclass(%(to_regclass_2)s),
    to_regclass(%(to_regclass_3)s),
    to_regclass(%(to_regclass_4)s)
)
ORDER BY pg_catalog.pg_class.relname
