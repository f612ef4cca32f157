SELECT pg_terminate_backend(pg_catalog.pg_stat_activity.pid) AS ended
FROM pg_catalog.pg_stat_activity
WHERE
    pg_catalog.pg_stat_activity.pid = %(pid)s::INTEGER
    AND pg_catalog.pg_stat_activity.backend_start = %(began_at)s::TIMESTAMP WITH TIME ZONE
    AND pg_catalog.pg_stat_activity.pid != pg_backend_pid()
    AND pg_catalog.pg_stat_activity.datname = current_database()
    AND pg_catalog.pg_stat_activity.backend_type = 'client backend'
    AND (
        pg_catalog.pg_stat_activity.backend_xid IS NOT NULL
            OR pg_catalog.pg_stat_activity.backend_xmin IS NOT NULL
    )
