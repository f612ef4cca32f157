SELECT CAST(pg_stat_clear_snapshot() AS TEXT) AS done
