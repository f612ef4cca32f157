SELECT
    coalesce(%(grantee)s::VARCHAR, CURRENT_USER) AS role,
    place.nspname AS schema,
    lacks.kind,
    lacks.name,
    lacks.privilege,
    lacks."column",
    lacks.hidden_by
FROM (
    SELECT pg_catalog.pg_namespace.oid AS oid, pg_catalog.pg_namespace.nspname AS nspname
    FROM pg_catalog.pg_namespace
    WHERE pg_catalog.pg_namespace.oid = coalesce(
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
) AS place
LEFT OUTER JOIN LATERAL (
    SELECT
        wanted.kind AS kind,
        wanted.name AS name,
        wanted.privilege AS privilege,
        wanted."column" AS "column",
        (
            SELECT there.nspname
            FROM pg_catalog.pg_namespace AS there, pg_catalog.pg_class AS other
            WHERE
                other.oid = to_regclass(quote_ident(wanted.name))
                AND there.oid = other.relnamespace
                AND other.oid != pg_catalog.pg_class.oid
        ) AS hidden_by
    FROM unnest(
        %(right_kind)s::TEXT[],
        %(right_name)s::TEXT[],
        %(right_privilege)s::TEXT[],
        %(right_column)s::TEXT[]
    ) AS wanted(kind, name, privilege, "column")
    LEFT OUTER JOIN pg_catalog.pg_class ON pg_catalog.pg_class.relname = wanted.name
        AND pg_catalog.pg_class.relnamespace = place.oid
    WHERE
        NOT CASE
            WHEN (wanted.kind = 'SCHEMA') THEN has_schema_privilege(
                coalesce(%(grantee)s::VARCHAR, CURRENT_USER),
                place.oid,
                wanted.privilege
            )
            WHEN (pg_catalog.pg_class.oid IS NULL) THEN true
            WHEN (wanted.kind = 'SEQUENCE') THEN has_sequence_privilege(
                coalesce(%(grantee)s::VARCHAR, CURRENT_USER),
                pg_catalog.pg_class.oid,
                wanted.privilege
            )
            WHEN (wanted."column" = '') THEN has_table_privilege(
                coalesce(%(grantee)s::VARCHAR, CURRENT_USER),
                pg_catalog.pg_class.oid,
                wanted.privilege
            )
            ELSE has_column_privilege(
                coalesce(%(grantee)s::VARCHAR, CURRENT_USER),
                pg_catalog.pg_class.oid,
                wanted."column",
                wanted.privilege
            )
        END
        OR (
            SELECT there.nspname
            FROM pg_catalog.pg_namespace AS there, pg_catalog.pg_class AS other
            WHERE
                other.oid = to_regclass(quote_ident(wanted.name))
                AND there.oid = other.relnamespace
                AND other.oid != pg_catalog.pg_class.oid
        ) IS NOT NULL
) AS lacks ON true
