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
        'running' AS kind,
        task_leases.queue AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS UUID) AS task_id,
        CAST(count(*) AS BIGINT) AS number,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS at
    FROM task_leases
    GROUP BY task_leases.queue
    UNION ALL
    SELECT
        'failed' AS kind,
        listed.queue AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS UUID) AS task_id,
        CAST(count(*) AS BIGINT) AS number,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS at
    FROM (
        SELECT dead_letters.queue AS queue
        FROM dead_letters
        LIMIT %(most)s::BIGINT
    ) AS listed
    GROUP BY listed.queue
    UNION ALL
    SELECT
        'failed_lately' AS kind,
        lately.queue AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS UUID) AS task_id,
        CAST(count(*) AS BIGINT) AS number,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS at
    FROM (
        SELECT dead_letters.queue AS queue
        FROM dead_letters
        WHERE dead_letters.failed_at >= (SELECT clock.now FROM clock) + %(failed_since)s * interval '1 second'
        ORDER BY dead_letters.failed_at DESC
        LIMIT %(most)s::BIGINT
    ) AS lately
    GROUP BY lately.queue
    UNION ALL
    SELECT
        'held' AS kind,
        "some".queue AS name,
        "some".partition_key AS detail,
        "some".task_execution_id AS task_id,
        CAST(NULL AS BIGINT) AS number,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS at
    FROM (
        SELECT
            held.queue AS queue,
            held.partition_key AS partition_key,
            held.task_execution_id AS task_execution_id,
            held.held AS held
        FROM (
            SELECT
                partition_claims.queue AS queue,
                partition_claims.partition_key AS partition_key,
                partition_claims.task_execution_id AS task_execution_id,
                partition_claims.held AS held
            FROM partition_claims
            WHERE partition_claims.held
            LIMIT 1000
        ) AS held
        WHERE (
            SELECT 1
            FROM task_outbox AS entry
            WHERE entry.queue = held.queue AND entry.partition_key = held.partition_key
            LIMIT 1
        ) IS NOT NULL
        LIMIT 100
    ) AS "some"
    UNION ALL
    SELECT
        'overdue' AS kind,
        late.name AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS UUID) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        late.planted_until AS at
    FROM (
        SELECT task_schedules.name AS name, task_schedules.planted_until AS planted_until
        FROM task_schedules
        WHERE
            task_schedules.paused_at IS NULL
            AND task_schedules.planted_until < (SELECT clock.now FROM clock) + %(overdue_before)s * interval '1 second'
        LIMIT %(most)s::BIGINT
    ) AS late
    UNION ALL
    SELECT
        'ahead' AS kind,
        early.name AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS UUID) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        early.planted_until AS at
    FROM (
        SELECT task_schedules.name AS name, task_schedules.planted_until AS planted_until
        FROM task_schedules
        WHERE
            task_schedules.paused_at IS NULL
            AND task_schedules.planted_until > (SELECT clock.now FROM clock) + 60.0 * interval '1 second'
            AND (
                task_schedules.updated_at > (SELECT clock.now FROM clock) + 60.0 * interval '1 second'
                    OR task_schedules.planted_until > (SELECT clock.now FROM clock) + 86460.0 * interval '1 second'
            )
        LIMIT %(most)s::BIGINT
    ) AS early
    UNION ALL
    SELECT
        'unclosed' AS kind,
        unclosed.name AS name,
        CAST(NULL AS TEXT) AS detail,
        unclosed.id AS task_id,
        CAST(NULL AS BIGINT) AS number,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS at
    FROM (
        SELECT first.id AS id, first.name AS name
        FROM (
            SELECT task_batches.id AS id, task_batches.name AS name, task_batches.closed AS closed
            FROM task_batches
            WHERE task_batches.completed_at IS NULL
            ORDER BY task_batches.id
            LIMIT %(most)s::BIGINT
        ) AS first
        WHERE NOT first.closed
        ORDER BY first.id
    ) AS unclosed
) AS found
