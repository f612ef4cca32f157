SELECT
    found.kind,
    found.name,
    found.pid,
    found.state,
    found.query,
    found.began_at,
    found.age,
    found.transactions
FROM (
    SELECT
        CASE
            WHEN (pg_catalog.pg_stat_activity.backend_type = 'walsender') THEN 'standby'
            ELSE 'session'
        END AS kind,
        pg_catalog.pg_stat_activity.application_name AS name,
        pg_catalog.pg_stat_activity.pid AS pid,
        pg_catalog.pg_stat_activity.state AS state,
        pg_catalog.pg_stat_activity.query AS query,
        pg_catalog.pg_stat_activity.backend_start AS began_at,
        CAST(
            EXTRACT(epoch FROM clock_timestamp() - pg_catalog.pg_stat_activity.xact_start) AS DOUBLE PRECISION
        ) AS age,
        greatest(
            CAST(age(pg_catalog.pg_stat_activity.backend_xid) AS BIGINT),
            CAST(age(pg_catalog.pg_stat_activity.backend_xmin) AS BIGINT)
        ) AS transactions
    FROM pg_catalog.pg_stat_activity
    WHERE
        (
            pg_catalog.pg_stat_activity.backend_xid IS NOT NULL
                OR pg_catalog.pg_stat_activity.backend_xmin IS NOT NULL
        )
        AND (
            pg_catalog.pg_stat_activity.datname = current_database()
                OR pg_catalog.pg_stat_activity.backend_type = 'walsender'
        )
        AND pg_catalog.pg_stat_activity.pid != pg_backend_pid()
        AND pg_catalog.pg_stat_activity.backend_type != 'autovacuum worker'
        AND (
            pg_catalog.pg_stat_activity.pid NOT IN (
                SELECT pg_catalog.pg_stat_progress_vacuum.pid
                FROM pg_catalog.pg_stat_progress_vacuum
            )
        )
    UNION ALL
    SELECT
        'prepared' AS kind,
        pg_catalog.pg_prepared_xacts.gid AS name,
        CAST(NULL AS INTEGER) AS pid,
        CAST(NULL AS TEXT) AS state,
        CAST(NULL AS TEXT) AS query,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS began_at,
        CAST(
            EXTRACT(epoch FROM clock_timestamp() - pg_catalog.pg_prepared_xacts.prepared) AS DOUBLE PRECISION
        ) AS age,
        CAST(age(pg_catalog.pg_prepared_xacts.transaction) AS BIGINT) AS transactions
    FROM pg_catalog.pg_prepared_xacts
    WHERE pg_catalog.pg_prepared_xacts.database = current_database()
    UNION ALL
    SELECT
        'slot' AS kind,
        CAST(pg_catalog.pg_replication_slots.slot_name AS TEXT) AS name,
        CAST(NULL AS INTEGER) AS pid,
        CAST(NULL AS TEXT) AS state,
        CAST(NULL AS TEXT) AS query,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS began_at,
        CAST(NULL AS DOUBLE PRECISION) AS age,
        CAST(age(pg_catalog.pg_replication_slots.xmin) AS BIGINT) AS transactions
    FROM pg_catalog.pg_replication_slots
    WHERE pg_catalog.pg_replication_slots.xmin IS NOT NULL
) AS found
ORDER BY found.age DESC NULLS LAST, found.transactions DESC
LIMIT 20
