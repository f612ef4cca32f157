DELETE FROM key_rates WHERE key_rates.queue = %(queue)s::VARCHAR
