UPDATE workers
SET host=:host, pid=:pid, version=:version, release=:release, busy=:busy, isolation=:isolation, state=:state
WHERE workers.id = :worker_id
RETURNING id
