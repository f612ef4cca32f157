WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
INSERT INTO maintenance_jobs (name, due_at)
SELECT
    %(name)s::VARCHAR AS anon_1,
    (SELECT clock.now FROM clock) AS anon_2
WHERE %(name)s::VARCHAR IS NOT NULL
ON CONFLICT DO NOTHING
