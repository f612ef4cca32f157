SELECT
    server.name,
    server.version,
    server.size,
    server.now,
    (SELECT outboxq_alembic_version.version_num FROM outboxq_alembic_version) AS revision,
    (SELECT outboxq_alembic_version.oldest_code FROM outboxq_alembic_version) AS oldest_code
FROM (
    SELECT
        'SQLite' AS name,
        sqlite_version() AS version,
        pages.page_count * sizes.page_size AS size,
        :now AS now
    FROM pragma_page_count() AS pages
    JOIN pragma_page_size() AS sizes ON true
) AS server
