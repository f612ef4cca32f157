INSERT INTO key_limits (queue, concurrency_limit, key_concurrency, key_rate_limit, key_rate_seconds)
SELECT
    %(queue)s::VARCHAR AS anon_1,
    %(concurrency_limit)s::INTEGER AS anon_2,
    %(key_concurrency)s::INTEGER AS anon_3,
    %(key_rate_limit)s::INTEGER AS anon_4,
    %(key_rate_seconds)s AS anon_5
ON CONFLICT (queue) DO UPDATE SET concurrency_limit = excluded.concurrency_limit, key_concurrency = excluded.key_concurrency, key_rate_limit = excluded.key_rate_limit, key_rate_seconds = excluded.key_rate_seconds
