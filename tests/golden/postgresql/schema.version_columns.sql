SELECT pg_catalog.pg_attribute.attname AS name
FROM pg_catalog.pg_attribute
WHERE pg_catalog.pg_attribute.attrelid = to_regclass(%(to_regclass_1)s::VARCHAR)
