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
        min(lately.failed_at) AS at
    FROM (
        SELECT dead_letters.queue AS queue, dead_letters.failed_at AS failed_at
        FROM dead_letters
        WHERE dead_letters.failed_at >= (SELECT clock.now FROM clock) + %(failed_since)s * interval '1 second'
        ORDER BY dead_letters.failed_at DESC
        LIMIT %(most_failed)s::BIGINT
    ) AS lately
    GROUP BY lately.queue
    UNION ALL
    SELECT
        'held' AS kind,
        "some".queue AS name,
        "some".partition_key AS detail,
        "some".task_execution_id AS task_id,
        CAST(NULL AS BIGINT) AS number,
        (
            SELECT dead_letters.failed_at
            FROM dead_letters
            WHERE dead_letters.task_execution_id = "some".task_execution_id
        ) AS at
    FROM (/* overview.some-1 */) AS "some"
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
    UNION ALL
    SELECT
        'lost' AS kind,
        silent.label AS name,
        CAST(NULL AS TEXT) AS detail,
        silent.id AS task_id,
        CAST(silent.number AS BIGINT) AS number,
        silent.last_seen_at AS at
    FROM (
        SELECT
            workers.id AS id,
            workers.label AS label,
            workers.last_seen_at AS last_seen_at,
            coalesce(held.number, 0) AS number
        FROM workers
        LEFT OUTER JOIN (
            SELECT task_leases.worker_id AS worker_id, count(*) AS number
            FROM task_leases
            GROUP BY task_leases.worker_id
        ) AS held ON held.worker_id = workers.id
        WHERE
            workers.last_seen_at < (SELECT clock.now FROM clock) + %(live_since)s * interval '1 second'
            AND workers.last_seen_at >= (SELECT clock.now FROM clock) + %(lost_since)s * interval '1 second'
            AND workers.ended_at IS NULL
        ORDER BY coalesce(held.number, 0) DESC, workers.last_seen_at DESC, workers.id
        LIMIT 4
    ) AS silent
    UNION ALL
    SELECT
        'relay' AS kind,
        late_relays.name AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS UUID) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        late_relays.at AS at
    FROM (
        SELECT
            relays.name AS name,
            (
                SELECT relay_messages.created_at
                FROM relay_messages
                WHERE relay_messages.relay = relays.name
                ORDER BY relay_messages.id
                LIMIT 1
            ) AS at
        FROM relays
    ) AS late_relays
    WHERE late_relays.at < (SELECT clock.now FROM clock) + %(relay_before)s * interval '1 second'
    UNION ALL
    SELECT
        'storm' AS kind,
        task_metrics.queue AS name,
        task_metrics.task_name AS detail,
        CAST(NULL AS UUID) AS task_id,
        CAST(
            (sum(task_metrics.retried) + sum(task_metrics.timed_out)) - sum(task_metrics.timed_out_last) AS BIGINT
        ) AS number,
        max(CASE WHEN (task_metrics.retried > 0 OR task_metrics.timed_out > 0) THEN task_metrics.at END) AS at
    FROM task_metrics
    WHERE
        task_metrics.at >= (SELECT clock.now FROM clock) + %(storm_since)s * interval '1 second'
        AND task_metrics.at < (SELECT clock.now FROM clock)
    GROUP BY task_metrics.queue, task_metrics.task_name
    HAVING (sum(task_metrics.retried) + sum(task_metrics.timed_out)) - sum(task_metrics.timed_out_last) >= %(storm)s::BIGINT
        AND ((sum(task_metrics.retried) + sum(task_metrics.timed_out)) - sum(task_metrics.timed_out_last)) * 100 > %(storm_share)s::BIGINT * (
            sum(task_metrics.completed) + sum(task_metrics.retried) + sum(task_metrics.failed) + sum(
                task_metrics.timed_out
            )
        )
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
    UNION ALL
    SELECT
        'first_event' AS kind,
        CAST(NULL AS TEXT) AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS UUID) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        first_event.created_at AS at
    FROM (
        SELECT execution_events.created_at AS created_at
        FROM execution_events
        ORDER BY execution_events.sequence_num
        LIMIT 1
    ) AS first_event
) AS found
