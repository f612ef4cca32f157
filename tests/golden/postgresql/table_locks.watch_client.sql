SELECT set_config('client_connection_check_interval', '1s', true) AS now
WHERE current_setting('dynamic_shared_memory_type') != 'windows'
