UPDATE relay_shards
SET sleeps_until=NULL
WHERE relay_shards.relay = :relay AND relay_shards.worker_id = :worker_id
