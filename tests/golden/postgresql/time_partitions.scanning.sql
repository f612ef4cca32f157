SELECT
    set_config('statement_timeout', %(statement_timeout)s::VARCHAR, true) AS statement_timeout,
    set_config('enable_seqscan', 'on', true) AS enable_seqscan
