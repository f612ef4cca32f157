SELECT pg_advisory_lock(%(session)s::BIGINT) AS locked
