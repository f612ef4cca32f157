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
    UNION ALL
    SELECT
        'failed_lately' AS kind,
        lately.queue AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(count(*) AS BIGINT) AS number,
        min(lately.failed_at) AS at
    FROM (
        SELECT dead_letters.queue AS queue, dead_letters.failed_at AS failed_at
        FROM dead_letters
        WHERE dead_letters.failed_at >= (
            strftime(
                :strftime_1,
                (
                    CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_2 + CAST(
                        substr(:now, :substr_3, :substr_4) AS INTEGER
                    ) + CAST(round(:failed_since * :param_3) AS INTEGER)
                ) / 1000000,
                :strftime_3
            ) || printf(
                :printf_1,
                (
                    CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_2 + CAST(
                        substr(:now, :substr_3, :substr_4) AS INTEGER
                    ) + CAST(round(:failed_since * :param_3) AS INTEGER)
                ) % 1000000
            )
        )
        ORDER BY dead_letters.failed_at DESC
        LIMIT :most_failed
        OFFSET :param_4
    ) AS lately
    GROUP BY lately.queue
    UNION ALL
    SELECT
        'held' AS kind,
        some.queue AS name,
        some.partition_key AS detail,
        some.task_execution_id AS task_id,
        CAST(NULL AS BIGINT) AS number,
        (
            SELECT dead_letters.failed_at
            FROM dead_letters
            WHERE dead_letters.task_execution_id = some.task_execution_id
        ) AS at
    FROM (/* overview.some-1: param_5, param_6, param_7 */) AS some
    UNION ALL
    SELECT
        'overdue' AS kind,
        late.name AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        late.planted_until AS at
    FROM (
        SELECT task_schedules.name AS name, task_schedules.planted_until AS planted_until
        FROM task_schedules
        WHERE
            task_schedules.paused_at IS NULL
            AND task_schedules.planted_until < (
                strftime(
                    :strftime_4,
                    (
                        CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_8 + CAST(
                            substr(:now, :substr_7, :substr_8) AS INTEGER
                        ) + CAST(round(:overdue_before * :param_9) AS INTEGER)
                    ) / 1000000,
                    :strftime_6
                ) || printf(
                    :printf_2,
                    (
                        CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_8 + CAST(
                            substr(:now, :substr_7, :substr_8) AS INTEGER
                        ) + CAST(round(:overdue_before * :param_9) AS INTEGER)
                    ) % 1000000
                )
            )
        LIMIT :most
        OFFSET :param_10
    ) AS late
    UNION ALL
    SELECT
        'ahead' AS kind,
        early.name AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        early.planted_until AS at
    FROM (
        SELECT task_schedules.name AS name, task_schedules.planted_until AS planted_until
        FROM task_schedules
        WHERE
            task_schedules.paused_at IS NULL
            AND task_schedules.planted_until > (
                strftime(
                    :strftime_7,
                    (
                        CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_11 + CAST(
                            substr(:now, :substr_11, :substr_12) AS INTEGER
                        ) + CAST(round(60.0 * :param_12) AS INTEGER)
                    ) / 1000000,
                    :strftime_9
                ) || printf(
                    :printf_3,
                    (
                        CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_11 + CAST(
                            substr(:now, :substr_11, :substr_12) AS INTEGER
                        ) + CAST(round(60.0 * :param_12) AS INTEGER)
                    ) % 1000000
                )
            )
            AND (
                task_schedules.updated_at > (
                    strftime(
                        :strftime_7,
                        (
                            CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_11 + CAST(
                                substr(:now, :substr_11, :substr_12) AS INTEGER
                            ) + CAST(round(60.0 * :param_12) AS INTEGER)
                        ) / 1000000,
                        :strftime_9
                    ) || printf(
                        :printf_3,
                        (
                            CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_11 + CAST(
                                substr(:now, :substr_11, :substr_12) AS INTEGER
                            ) + CAST(round(60.0 * :param_12) AS INTEGER)
                        ) % 1000000
                    )
                )
                    OR task_schedules.planted_until > (
                        strftime(
                            :strftime_10,
                            (
                                CAST(strftime(:strftime_11, substr(:now, :substr_13, :substr_14)) AS INTEGER) * :param_13 + CAST(
                                    substr(:now, :substr_15, :substr_16) AS INTEGER
                                ) + CAST(round(86460.0 * :param_14) AS INTEGER)
                            ) / 1000000,
                            :strftime_12
                        ) || printf(
                            :printf_4,
                            (
                                CAST(strftime(:strftime_11, substr(:now, :substr_13, :substr_14)) AS INTEGER) * :param_13 + CAST(
                                    substr(:now, :substr_15, :substr_16) AS INTEGER
                                ) + CAST(round(86460.0 * :param_14) AS INTEGER)
                            ) % 1000000
                        )
                    )
            )
        LIMIT :most
        OFFSET :param_15
    ) AS early
    UNION ALL
    SELECT
        'unclosed' AS kind,
        unclosed.name AS name,
        unclosed.kind AS detail,
        unclosed.id AS task_id,
        CAST(NULL AS BIGINT) AS number,
        CAST(NULL AS TEXT) AS at
    FROM (/* overview.unclosed-1: param_16 */) AS unclosed
    UNION ALL
    SELECT
        'batch_waits' AS kind,
        waits.name AS name,
        waits.kind AS detail,
        waits.id AS task_id,
        CAST(waits.failed AS BIGINT) AS number,
        waits.updated_at AS at
    FROM (/* overview.waits-1: param_17 */) AS waits
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
            workers.last_seen_at < (
                strftime(
                    :strftime_13,
                    (
                        CAST(strftime(:strftime_14, substr(:now, :substr_17, :substr_18)) AS INTEGER) * :param_18 + CAST(
                            substr(:now, :substr_19, :substr_20) AS INTEGER
                        ) + CAST(round(:live_since * :param_19) AS INTEGER)
                    ) / 1000000,
                    :strftime_15
                ) || printf(
                    :printf_5,
                    (
                        CAST(strftime(:strftime_14, substr(:now, :substr_17, :substr_18)) AS INTEGER) * :param_18 + CAST(
                            substr(:now, :substr_19, :substr_20) AS INTEGER
                        ) + CAST(round(:live_since * :param_19) AS INTEGER)
                    ) % 1000000
                )
            )
            AND workers.last_seen_at >= (
                strftime(
                    :strftime_16,
                    (
                        CAST(strftime(:strftime_17, substr(:now, :substr_21, :substr_22)) AS INTEGER) * :param_20 + CAST(
                            substr(:now, :substr_23, :substr_24) AS INTEGER
                        ) + CAST(round(:lost_since * :param_21) AS INTEGER)
                    ) / 1000000,
                    :strftime_18
                ) || printf(
                    :printf_6,
                    (
                        CAST(strftime(:strftime_17, substr(:now, :substr_21, :substr_22)) AS INTEGER) * :param_20 + CAST(
                            substr(:now, :substr_23, :substr_24) AS INTEGER
                        ) + CAST(round(:lost_since * :param_21) AS INTEGER)
                    ) % 1000000
                )
            )
            AND workers.ended_at IS NULL
        ORDER BY coalesce(held.number, 0) DESC, workers.last_seen_at DESC, workers.id
        LIMIT 4
        OFFSET :param_22
    ) AS silent
    UNION ALL
    SELECT
        'relay' AS kind,
        late_relays.name AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
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
                OFFSET :param_23
            ) AS at
        FROM relays
    ) AS late_relays
    WHERE late_relays.at < (
        strftime(
            :strftime_19,
            (
                CAST(strftime(:strftime_20, substr(:now, :substr_25, :substr_26)) AS INTEGER) * :param_24 + CAST(
                    substr(:now, :substr_27, :substr_28) AS INTEGER
                ) + CAST(round(:relay_before * :param_25) AS INTEGER)
            ) / 1000000,
            :strftime_21
        ) || printf(
            :printf_7,
            (
                CAST(strftime(:strftime_20, substr(:now, :substr_25, :substr_26)) AS INTEGER) * :param_24 + CAST(
                    substr(:now, :substr_27, :substr_28) AS INTEGER
                ) + CAST(round(:relay_before * :param_25) AS INTEGER)
            ) % 1000000
        )
    )
    UNION ALL
    SELECT
        'storm' AS kind,
        task_metrics.queue AS name,
        task_metrics.task_name AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(
            (sum(task_metrics.retried) + sum(task_metrics.timed_out)) - sum(task_metrics.timed_out_last) AS BIGINT
        ) AS number,
        max(CASE WHEN (task_metrics.retried > 0 OR task_metrics.timed_out > 0) THEN task_metrics.at END) AS at
    FROM task_metrics
    WHERE
        task_metrics.at >= (
            strftime(
                :strftime_22,
                (
                    CAST(strftime(:strftime_23, substr(:now, :substr_29, :substr_30)) AS INTEGER) * :param_26 + CAST(
                        substr(:now, :substr_31, :substr_32) AS INTEGER
                    ) + CAST(round(:storm_since * :param_27) AS INTEGER)
                ) / 1000000,
                :strftime_24
            ) || printf(
                :printf_8,
                (
                    CAST(strftime(:strftime_23, substr(:now, :substr_29, :substr_30)) AS INTEGER) * :param_26 + CAST(
                        substr(:now, :substr_31, :substr_32) AS INTEGER
                    ) + CAST(round(:storm_since * :param_27) AS INTEGER)
                ) % 1000000
            )
        )
        AND task_metrics.at < :now
    GROUP BY task_metrics.queue, task_metrics.task_name
    HAVING (sum(task_metrics.retried) + sum(task_metrics.timed_out)) - sum(task_metrics.timed_out_last) >= :storm
        AND ((sum(task_metrics.retried) + sum(task_metrics.timed_out)) - sum(task_metrics.timed_out_last)) * 100 > :storm_share * (
            sum(task_metrics.completed) + sum(task_metrics.retried) + sum(task_metrics.failed) + sum(
                task_metrics.timed_out
            )
        )
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
    UNION ALL
    SELECT
        'first_event' AS kind,
        CAST(NULL AS TEXT) AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(NULL AS BIGINT) AS number,
        first_event.created_at AS at
    FROM (
        SELECT execution_events.created_at AS created_at
        FROM execution_events
        ORDER BY execution_events.sequence_num
        LIMIT 1
        OFFSET :param_28
    ) AS first_event
) AS found
