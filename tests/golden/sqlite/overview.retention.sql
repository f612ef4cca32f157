SELECT found.kind, found.name, found.detail, found.task_id, found.number, found.at
FROM (
    SELECT
        'now' AS kind,
        CAST(NULL AS TEXT) AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        :now AS at
    UNION ALL
    SELECT
        'retention' AS kind,
        task_schedules.name AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        CAST(NULL AS TEXT) AS at
    FROM task_schedules
    WHERE task_schedules.task_name = 'outboxq.prune' AND task_schedules.paused_at IS NULL
    UNION ALL
    SELECT
        'retention' AS kind,
        CAST(NULL AS TEXT) AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        maintenance_jobs.done_at AS at
    FROM maintenance_jobs
    WHERE maintenance_jobs.name = 'outboxq.prune' AND maintenance_jobs.done_at IS NOT NULL
) AS found
