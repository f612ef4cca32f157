SELECT set_config('lock_timeout', %(lock_timeout)s::VARCHAR, true) AS now
