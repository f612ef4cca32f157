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
        'running' AS kind,
        task_leases.queue AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(count(*) AS BIGINT) AS number,
        CAST(NULL AS TEXT) AS at
    FROM task_leases
    GROUP BY task_leases.queue
    UNION ALL
    SELECT
        'failed' AS kind,
        listed.queue AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(count(*) AS BIGINT) AS number,
        CAST(NULL AS TEXT) AS at
    FROM (
        SELECT dead_letters.queue AS queue
        FROM dead_letters
        LIMIT :most
        OFFSET :param_1
    ) AS listed
    GROUP BY listed.queue
) AS found
