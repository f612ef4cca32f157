SELECT
    'SQLite' AS name,
    sqlite_version() AS version,
    pages.page_count * sizes.page_size AS size,
    NULL AS oldest_snapshot_at,
    :now AS now
FROM pragma_page_count() AS pages
JOIN pragma_page_size() AS sizes ON true
