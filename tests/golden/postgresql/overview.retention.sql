WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT found.kind, found.name, found.detail, found.task_id, found.number, found.at
FROM (
    SELECT
        'now' AS kind,
        CAST(NULL AS TEXT) AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS UUID) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        (SELECT clock.now FROM clock) AS at
    UNION ALL
    SELECT
        'retention' AS kind,
        task_schedules.name AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS UUID) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS at
    FROM task_schedules
    WHERE task_schedules.task_name = 'outboxq.prune' AND task_schedules.paused_at IS NULL
    UNION ALL
    SELECT
        'retention' AS kind,
        CAST(NULL AS TEXT) AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS UUID) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        maintenance_jobs.done_at AS at
    FROM maintenance_jobs
    WHERE maintenance_jobs.name = 'outboxq.prune' AND maintenance_jobs.done_at IS NOT NULL
) AS found
