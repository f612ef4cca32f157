UPDATE workers
SET
    host=:host,
    pid=:pid,
    version=:version,
    release=:release,
    busy=:busy,
    isolation=:isolation,
    receivers=:receivers_json,
    state=:state,
    failure=:failure,
    failing_since=:failing_since
WHERE workers.id = :worker_id
RETURNING id
