SELECT
    set_config('lock_timeout', '700ms', true) AS lock_timeout,
    set_config('enable_seqscan', 'on', true) AS enable_seqscan
