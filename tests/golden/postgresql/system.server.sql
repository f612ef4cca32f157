WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT
    server.name,
    server.version,
    server.size,
    server.oldest_snapshot_at,
    server.now,
    (SELECT outboxq_alembic_version.version_num FROM outboxq_alembic_version) AS revision,
    (SELECT outboxq_alembic_version.oldest_code FROM outboxq_alembic_version) AS oldest_code
FROM (
    SELECT 'PostgreSQL' AS name,
    current_setting('server_version') AS version,
    pg_database_size(current_database()) AS size,
    least(
        (
            SELECT min(pg_catalog.pg_stat_activity.xact_start) AS min_1
            FROM pg_catalog.pg_stat_activity
            WHERE
                pg_catalog.pg_stat_activity.backend_xmin IS NOT NULL
                AND pg_catalog.pg_stat_activity.pid != pg_backend_pid()
                AND pg_catalog.pg_stat_activity.datname = current_database()
                AND pg_catalog.pg_stat_activity.backend_type != 'autovacuum worker'
        ),
        (
            SELECT min(pg_catalog.pg_prepared_xacts.prepared) AS min_2
            FROM pg_catalog.pg_prepared_xacts
            WHERE pg_catalog.pg_prepared_xacts.database = current_database()
        )
    ) AS oldest_snapshot_at,
    (SELECT clock.now FROM clock) AS now
) AS server
