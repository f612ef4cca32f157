SELECT CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT) AS horizon
