SELECT found.kind, found.name, found.detail, found.task_id, found.number, found.at
FROM (
    SELECT
        'held' AS kind,
        "some".queue AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS UUID) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS at
    FROM (/* overview.some-1 */) AS "some"
    UNION ALL
    SELECT
        'unclosed' AS kind,
        unclosed.name AS name,
        unclosed.kind AS detail,
        unclosed.id AS task_id,
        CAST(NULL AS BIGINT) AS number,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS at
    FROM (/* overview.unclosed-1 */) AS unclosed
    UNION ALL
    SELECT
        'batch_waits' AS kind,
        waits.name AS name,
        waits.kind AS detail,
        waits.id AS task_id,
        CAST(waits.failed AS BIGINT) AS number,
        waits.updated_at AS at
    FROM (/* overview.waits-1 */) AS waits
) AS found
