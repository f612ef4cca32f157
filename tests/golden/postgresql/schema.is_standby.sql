SELECT 1 AS found WHERE pg_is_in_recovery()
