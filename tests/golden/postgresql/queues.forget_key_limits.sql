DELETE FROM key_limits WHERE key_limits.queue = %(queue)s::VARCHAR
