UPDATE workers
SET
    host=%(host)s::VARCHAR,
    pid=%(pid)s::INTEGER,
    version=%(version)s::VARCHAR,
    release=%(release)s::VARCHAR,
    busy=%(busy)s::INTEGER,
    isolation=%(isolation)s::VARCHAR,
    receivers=%(receivers_json)s::VARCHAR,
    state=%(state)s::VARCHAR,
    failure=%(failure)s::VARCHAR,
    failing_since=%(failing_since)s
WHERE workers.id = %(worker_id)s::UUID
RETURNING workers.id
