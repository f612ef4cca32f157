WITH earlier AS MATERIALIZED (SELECT current_setting('lock_timeout') AS before)
SELECT earlier.before, set_config('lock_timeout', %(lock_timeout)s::VARCHAR, true) AS now
FROM earlier
