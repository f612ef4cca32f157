SELECT
    parent.relname AS parent,
    leaf.relname AS name,
    pg_catalog.pg_namespace.nspname AS schema,
    pg_get_expr(leaf.relpartbound, leaf.oid) AS bound,
    pg_get_userbyid(parent.relowner) AS owner,
    pg_has_role(parent.relowner, 'USAGE') AS owned
FROM pg_catalog.pg_inherits AS pg_inherits_1
JOIN pg_catalog.pg_class AS parent ON parent.oid = pg_inherits_1.inhparent
JOIN pg_catalog.pg_class AS leaf ON leaf.oid = pg_inherits_1.inhrelid
JOIN pg_catalog.pg_namespace ON pg_catalog.pg_namespace.oid = parent.relnamespace
WHERE
    (parent.oid = to_regclass(%(to_regclass_1)s) OR parent.oid = to_regclass(%(to_regclass_2)s))
    AND parent.relkind = 'p'
