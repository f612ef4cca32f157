SELECT pg_catalog.pg_class.relname AS name
FROM pg_catalog.pg_class
WHERE pg_catalog.pg_class.relnamespace = coalesce(
    (
        SELECT pg_catalog.pg_class.relnamespace
        FROM pg_catalog.pg_class
        WHERE pg_catalog.pg_class.oid = to_regclass(%(to_regclass_1)s::VARCHAR)
    ),
    (
        SELECT pg_catalog.pg_namespace.oid
        FROM pg_catalog.pg_namespace
        WHERE pg_catalog.pg_namespace.nspname = CAST(current_schema() AS TEXT)
    )
)
