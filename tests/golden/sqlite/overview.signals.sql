SELECT
    found.kind,
    found.name,
    found.detail,
    found.task_id,
    found.number_1,
    found.number_2,
    found.number_3,
    found.number_4,
    found.number_5,
    found.seconds,
    found.other_seconds,
    found.at,
    found.other_at
FROM (
    SELECT
        'now' AS kind,
        CAST(NULL AS TEXT) AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(NULL AS BIGINT) AS number_1,
        CAST(NULL AS BIGINT) AS number_2,
        CAST(NULL AS BIGINT) AS number_3,
        CAST(NULL AS BIGINT) AS number_4,
        CAST(NULL AS BIGINT) AS number_5,
        CAST(NULL AS DOUBLE) AS seconds,
        CAST(NULL AS DOUBLE) AS other_seconds,
        :now AS at,
        CAST(NULL AS TEXT) AS other_at
    UNION ALL
    SELECT
        'running' AS kind,
        task_leases.queue AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(count(*) AS BIGINT) AS number_1,
        CAST(NULL AS BIGINT) AS number_2,
        CAST(NULL AS BIGINT) AS number_3,
        CAST(NULL AS BIGINT) AS number_4,
        CAST(NULL AS BIGINT) AS number_5,
        CAST(NULL AS DOUBLE) AS seconds,
        CAST(NULL AS DOUBLE) AS other_seconds,
        CAST(NULL AS TEXT) AS at,
        CAST(NULL AS TEXT) AS other_at
    FROM task_leases
    GROUP BY task_leases.queue
    UNION ALL
    SELECT
        'failed' AS kind,
        listed.queue AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(count(*) AS BIGINT) AS number_1,
        CAST(NULL AS BIGINT) AS number_2,
        CAST(NULL AS BIGINT) AS number_3,
        CAST(NULL AS BIGINT) AS number_4,
        CAST(NULL AS BIGINT) AS number_5,
        CAST(NULL AS DOUBLE) AS seconds,
        CAST(NULL AS DOUBLE) AS other_seconds,
        CAST(NULL AS TEXT) AS at,
        CAST(NULL AS TEXT) AS other_at
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
        CAST(count(*) AS BIGINT) AS number_1,
        CAST(NULL AS BIGINT) AS number_2,
        CAST(NULL AS BIGINT) AS number_3,
        CAST(NULL AS BIGINT) AS number_4,
        CAST(NULL AS BIGINT) AS number_5,
        CAST(NULL AS DOUBLE) AS seconds,
        CAST(NULL AS DOUBLE) AS other_seconds,
        max(lately.failed_at) AS at,
        CAST(NULL AS TEXT) AS other_at
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
        LIMIT :most
        OFFSET :param_4
    ) AS lately
    GROUP BY lately.queue
    UNION ALL
    SELECT
        'held' AS kind,
        some.queue AS name,
        some.partition_key AS detail,
        some.task_execution_id AS task_id,
        CAST(NULL AS BIGINT) AS number_1,
        CAST(NULL AS BIGINT) AS number_2,
        CAST(NULL AS BIGINT) AS number_3,
        CAST(NULL AS BIGINT) AS number_4,
        CAST(NULL AS BIGINT) AS number_5,
        CAST(NULL AS DOUBLE) AS seconds,
        CAST(NULL AS DOUBLE) AS other_seconds,
        CAST(NULL AS TEXT) AS at,
        CAST(NULL AS TEXT) AS other_at
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
            WHERE partition_claims.held = 1
            LIMIT 1000
            OFFSET :param_5
        ) AS held
        WHERE (
            SELECT 1
            FROM task_outbox AS entry
            WHERE entry.queue = held.queue AND entry.partition_key = held.partition_key
            LIMIT 1
            OFFSET :param_6
        ) IS NOT NULL
        LIMIT 100
        OFFSET :param_7
    ) AS some
    UNION ALL
    SELECT
        'settings' AS kind,
        queue_settings.queue AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(queue_settings.concurrency_limit AS BIGINT) AS number_1,
        CAST(queue_settings.rate_limit AS BIGINT) AS number_2,
        CAST(CASE WHEN queue_settings.fair THEN :param_8 ELSE :param_9 END AS BIGINT) AS number_3,
        CAST(queue_settings.key_concurrency AS BIGINT) AS number_4,
        CAST(queue_settings.key_rate_limit AS BIGINT) AS number_5,
        queue_settings.rate_seconds AS seconds,
        queue_settings.key_rate_seconds AS other_seconds,
        queue_settings.paused_at AS at,
        queue_settings.updated_at AS other_at
    FROM queue_settings
    UNION ALL
    SELECT
        'schedule' AS kind,
        late.name AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(NULL AS BIGINT) AS number_1,
        CAST(NULL AS BIGINT) AS number_2,
        CAST(NULL AS BIGINT) AS number_3,
        CAST(NULL AS BIGINT) AS number_4,
        CAST(NULL AS BIGINT) AS number_5,
        CAST(NULL AS DOUBLE) AS seconds,
        CAST(NULL AS DOUBLE) AS other_seconds,
        late.planted_until AS at,
        CAST(NULL AS TEXT) AS other_at
    FROM (
        SELECT task_schedules.name AS name, task_schedules.planted_until AS planted_until
        FROM task_schedules
        WHERE
            task_schedules.paused_at IS NULL
            AND task_schedules.planted_until < (
                strftime(
                    :strftime_4,
                    (
                        CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_10 + CAST(
                            substr(:now, :substr_7, :substr_8) AS INTEGER
                        ) + CAST(round(:overdue_before * :param_11) AS INTEGER)
                    ) / 1000000,
                    :strftime_6
                ) || printf(
                    :printf_2,
                    (
                        CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_10 + CAST(
                            substr(:now, :substr_7, :substr_8) AS INTEGER
                        ) + CAST(round(:overdue_before * :param_11) AS INTEGER)
                    ) % 1000000
                )
            )
        LIMIT :most
        OFFSET :param_12
    ) AS late
    UNION ALL
    SELECT
        'ahead' AS kind,
        early.name AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(NULL AS BIGINT) AS number_1,
        CAST(NULL AS BIGINT) AS number_2,
        CAST(NULL AS BIGINT) AS number_3,
        CAST(NULL AS BIGINT) AS number_4,
        CAST(NULL AS BIGINT) AS number_5,
        CAST(NULL AS DOUBLE) AS seconds,
        CAST(NULL AS DOUBLE) AS other_seconds,
        early.planted_until AS at,
        CAST(NULL AS TEXT) AS other_at
    FROM (
        SELECT task_schedules.name AS name, task_schedules.planted_until AS planted_until
        FROM task_schedules
        WHERE
            task_schedules.paused_at IS NULL
            AND task_schedules.planted_until > (
                strftime(
                    :strftime_7,
                    (
                        CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_13 + CAST(
                            substr(:now, :substr_11, :substr_12) AS INTEGER
                        ) + CAST(round(60.0 * :60_0_1) AS INTEGER)
                    ) / 1000000,
                    :strftime_9
                ) || printf(
                    :printf_3,
                    (
                        CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_13 + CAST(
                            substr(:now, :substr_11, :substr_12) AS INTEGER
                        ) + CAST(round(60.0 * :60_0_1) AS INTEGER)
                    ) % 1000000
                )
            )
            AND (
                task_schedules.updated_at > (
                    strftime(
                        :strftime_7,
                        (
                            CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_13 + CAST(
                                substr(:now, :substr_11, :substr_12) AS INTEGER
                            ) + CAST(round(60.0 * :60_0_1) AS INTEGER)
                        ) / 1000000,
                        :strftime_9
                    ) || printf(
                        :printf_3,
                        (
                            CAST(strftime(:strftime_8, substr(:now, :substr_9, :substr_10)) AS INTEGER) * :param_13 + CAST(
                                substr(:now, :substr_11, :substr_12) AS INTEGER
                            ) + CAST(round(60.0 * :60_0_1) AS INTEGER)
                        ) % 1000000
                    )
                )
                    OR task_schedules.planted_until > (
                        strftime(
                            :strftime_10,
                            (
                                CAST(strftime(:strftime_11, substr(:now, :substr_13, :substr_14)) AS INTEGER) * :param_14 + CAST(
                                    substr(:now, :substr_15, :substr_16) AS INTEGER
                                ) + CAST(round(86460.0 * :86460_0_1) AS INTEGER)
                            ) / 1000000,
                            :strftime_12
                        ) || printf(
                            :printf_4,
                            (
                                CAST(strftime(:strftime_11, substr(:now, :substr_13, :substr_14)) AS INTEGER) * :param_14 + CAST(
                                    substr(:now, :substr_15, :substr_16) AS INTEGER
                                ) + CAST(round(86460.0 * :86460_0_1) AS INTEGER)
                            ) % 1000000
                        )
                    )
            )
        LIMIT :most
        OFFSET :param_15
    ) AS early
    UNION ALL
    SELECT
        'sample' AS kind,
        last.queue AS name,
        CAST(NULL AS TEXT) AS detail,
        CAST(NULL AS CHAR(32)) AS task_id,
        CAST(last.ready AS BIGINT) AS number_1,
        CAST(last.delayed AS BIGINT) AS number_2,
        CAST(last.running AS BIGINT) AS number_3,
        CAST(last.failed AS BIGINT) AS number_4,
        CAST(CASE WHEN last.exact THEN :param_16 ELSE :param_17 END AS BIGINT) AS number_5,
        CAST(NULL AS DOUBLE) AS seconds,
        CAST(NULL AS DOUBLE) AS other_seconds,
        last.at AS at,
        last.oldest_ready_at AS other_at
    FROM (
        SELECT
            queue_samples.at AS at,
            queue_samples.queue AS queue,
            queue_samples.ready AS ready,
            queue_samples.delayed AS delayed,
            queue_samples.running AS running,
            queue_samples.failed AS failed,
            queue_samples.oldest_ready_at AS oldest_ready_at,
            queue_samples.exact AS exact
        FROM queue_samples
        WHERE queue_samples.at = (
            SELECT max(queue_samples.at) AS max_1
            FROM queue_samples
            WHERE queue_samples.at <= :now
        )
    ) AS last
) AS found
