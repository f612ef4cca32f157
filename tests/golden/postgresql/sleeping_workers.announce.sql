WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
INSERT INTO sleeping_workers (worker_id, queue, wakes_at, session)
SELECT
    %(worker_id)s::UUID AS anon_1,
    '',
    (SELECT clock.now FROM clock) + %(longest_seconds)s * interval '1 second' AS anon_2,
    %(session)s::BIGINT AS anon_3
ON CONFLICT (worker_id, queue) DO UPDATE SET wakes_at = excluded.wakes_at, session = excluded.session
RETURNING
    (
        SELECT count(*) AS count_1
        FROM sleeping_workers AS other
        WHERE
            other.worker_id != %(worker_id)s::UUID
            AND other.queue IN (sleeping_workers.queue, '')
            AND other.wakes_at > (SELECT clock.now FROM clock)
            AND other.session IS NOT NULL
    ) AS others,
    (
        SELECT count(*) AS count_1
        FROM sleeping_workers AS other
        WHERE
            other.worker_id != %(worker_id)s::UUID
            AND other.queue IN (sleeping_workers.queue, '')
            AND other.wakes_at > (SELECT clock.now FROM clock)
            AND other.session IS NOT NULL
            AND other.worker_id < %(worker_id)s::UUID
    ) AS before
