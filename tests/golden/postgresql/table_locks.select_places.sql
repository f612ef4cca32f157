SELECT pg_catalog.pg_class.relname AS name, pg_catalog.pg_namespace.nspname AS schema
FROM pg_catalog.pg_class
JOIN pg_catalog.pg_namespace ON pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace
WHERE pg_catalog.pg_class.oid IN (
    to_regclass(%(to_regclass_1)s::VARCHAR),
    to_regclass(%(to_regclass_2)s::VARCHAR),
    to_regclass(%(to_regclass_3)s::VARCHAR),
    to_regclass(%(to_regclass_4)s::VARCHAR),
    to_regclass(%(to_regclass_5)s::VARCHAR),
    to_regclass(%(to_regclass_6)s::VARCHAR),
    to_regclass(%(to_regclass_7)s::VARCHAR),
    to_regclass(%(to_regclass_8)s::VARCHAR),
    to_regclass(%(to_regclass_9)s::VARCHAR),
    to_regclass(%(to_regclass_10)s::VARCHAR),
    to_regclass(%(to_regclass_11)s::VARCHAR),
    to_regclass(%(to_regclass_12)s::VARCHAR),
    to_regclass(%(to_regclass_13)s::VARCHAR),
    to_regclass(%(to_regclass_14)s::VARCHAR),
    to_regclass(%(to_regclass_15)s::VARCHAR),
    to_regclass(%(to_regclass_16)s::VARCHAR),
    to_regclass(%(to_regclass_17)s::VARCHAR),
    to_regclass(%(to_regclass_18)s::VARCHAR),
    to_regclass(%(to_regclass_19)s::VARCHAR),
    to_regclass(%(to_regclass_20)s::VARCHAR),
    to_regclass(%(to_regclass_21)s::VARCHAR),
    to_regclass(%(to_regclass_22)s::VARCHAR),
    to_regclass(%(to_regclass_23)s::VARCHAR),
    to_regclass(%(to_regclass_24)s::VARCHAR),
    to_regclass(%(to_regclass_25)s::VARCHAR),
    to_regclass(%(to_regclass_26)s::VARCHAR)
)
ORDER BY pg_catalog.pg_class.relname = 'outboxq_alembic_version', pg_catalog.pg_class.relname
