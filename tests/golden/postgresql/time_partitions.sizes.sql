SELECT
    leaf.relname AS name,
    pg_total_relation_size(leaf.oid) AS size,
    pg_stat_get_live_tuples(leaf.oid) AS rows
FROM pg_catalog.pg_inherits
JOIN pg_catalog.pg_class AS leaf ON leaf.oid = pg_catalog.pg_inherits.inhrelid
WHERE
    pg_catalog.pg_inherits.inhparent = to_regclass(%(to_regclass_1)s)
    OR pg_catalog.pg_inherits.inhparent = to_regclass(%(to_regclass_2)s)
ORDER BY leaf.relname
