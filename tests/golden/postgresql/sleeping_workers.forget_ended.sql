WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
DELETE FROM sleeping_workers
WHERE
    (sleeping_workers.worker_id, sleeping_workers.queue) IN (
        SELECT sleeping_workers.worker_id, sleeping_workers.queue
        FROM sleeping_workers
        WHERE sleeping_workers.wakes_at < (SELECT clock.now FROM clock)
        FOR UPDATE SKIP LOCKED
    )
    AND sleeping_workers.wakes_at < (SELECT clock.now FROM clock)
