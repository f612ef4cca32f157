SELECT
    set_config('statement_timeout', '0', true) AS statement_timeout,
    set_config('enable_seqscan', 'on', true) AS enable_seqscan
