SELECT setval(CAST(%(sequence)s::VARCHAR AS REGCLASS), %(number)s::BIGINT, false) AS number
