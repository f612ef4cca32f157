WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT
    server.name,
    server.version,
    server.size,
    server.now,
    (SELECT outboxq_alembic_version.version_num FROM outboxq_alembic_version) AS revision,
    (SELECT outboxq_alembic_version.oldest_code FROM outboxq_alembic_version) AS oldest_code
FROM (
    SELECT 'PostgreSQL' AS name,
    current_setting('server_version') AS version,
    pg_database_size(current_database()) AS size,
    (SELECT clock.now FROM clock) AS now
) AS server
