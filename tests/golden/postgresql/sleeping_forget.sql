WITH clock AS MATERIALIZED
(SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now)
  DELETE FROM sleeping_workers
WHERE sleeping_workers.worker_id = %(worker_id)s::UUID OR sleeping_workers.wakes_at < (SELECT clock.now
FROM clock) + -86400.0 * interval '1 second'
