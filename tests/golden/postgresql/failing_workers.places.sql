SELECT
    (
        SELECT pg_catalog.pg_settings.setting
        FROM pg_catalog.pg_settings
        WHERE pg_catalog.pg_settings.name = 'data_directory'
    ) AS directory,
    (
        SELECT pg_catalog.pg_tablespace.spcname
        FROM pg_catalog.pg_tablespace
        WHERE pg_catalog.pg_tablespace.oid = CAST(%(tablespace)s::BIGINT AS BIGINT)
    ) AS tablespace,
    (
        SELECT pg_tablespace_location(pg_catalog.pg_tablespace.oid) AS pg_tablespace_location_1
        FROM pg_catalog.pg_tablespace
        WHERE pg_catalog.pg_tablespace.oid = CAST(%(tablespace)s::BIGINT AS BIGINT)
    ) AS location
