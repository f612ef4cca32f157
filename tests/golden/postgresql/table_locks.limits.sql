WITH earlier AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS lock_timeout,
    current_setting('statement_timeout') AS statement_timeout
)
SELECT
    earlier.lock_timeout,
    earlier.statement_timeout,
    set_config('lock_timeout', %(lock_timeout)s::VARCHAR, true) AS lock_timeout_now,
    set_config('statement_timeout', coalesce(%(statement_timeout)s::VARCHAR, earlier.statement_timeout), true) AS statement_timeout_now
FROM earlier
