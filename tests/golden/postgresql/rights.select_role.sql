SELECT 1 AS found
FROM pg_catalog.pg_roles
WHERE pg_catalog.pg_roles.rolname = %(grantee)s::VARCHAR
