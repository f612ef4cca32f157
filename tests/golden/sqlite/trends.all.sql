WITH
    steps AS MATERIALIZED (
        SELECT
            steps_rows."key" AS ordinal,
            json_extract(steps_rows.value, '$[0]') AS begins_at,
            json_extract(steps_rows.value, '$[1]') AS ends_at
        FROM json_each(:steps) AS steps_rows
    ),
    moments AS MATERIALIZED (
        SELECT
            steps.begins_at AS begins_at,
            (
                SELECT max(queue_samples.at) AS max_1
                FROM queue_samples
                WHERE queue_samples.at >= steps.begins_at AND queue_samples.at < steps.ends_at
            ) AS at
        FROM steps
    )
SELECT
    found.kind,
    found.step,
    found.completed,
    found.retried,
    found.failed,
    found.cancelled,
    found.timed_out,
    found.timed_out_last,
    found.wait_0,
    found.wait_1,
    found.wait_2,
    found.wait_3,
    found.wait_4,
    found.wait_5,
    found.wait_6,
    found.wait_7,
    found.wait_8,
    found.wait_9,
    found.wait_10,
    found.wait_11,
    found.wait_12,
    found.wait_13,
    found.wait_14,
    found.wait_15,
    found.wait_16,
    found.wait_17,
    found.wait_18,
    found.wait_19,
    found.wait_20,
    found.wait_21,
    found.wait_22,
    found.run_0,
    found.run_1,
    found.run_2,
    found.run_3,
    found.run_4,
    found.run_5,
    found.run_6,
    found.run_7,
    found.run_8,
    found.run_9,
    found.run_10,
    found.run_11,
    found.run_12,
    found.run_13,
    found.run_14,
    found.run_15,
    found.run_16,
    found.run_17,
    found.run_18,
    found.run_19,
    found.run_20,
    found.run_21,
    found.run_22,
    found.sampled_ready,
    found.sampled_delayed,
    found.sampled_running,
    found.sampled_failed,
    found.partition_key,
    found.dead_letter,
    found.failed_at,
    found.waiting
FROM (
    SELECT
        'counted' AS kind,
        counted.step AS step,
        counted.completed AS completed,
        counted.retried AS retried,
        counted.failed AS failed,
        counted.cancelled AS cancelled,
        counted.timed_out AS timed_out,
        counted.timed_out_last AS timed_out_last,
        counted.wait_0 AS wait_0,
        counted.wait_1 AS wait_1,
        counted.wait_2 AS wait_2,
        counted.wait_3 AS wait_3,
        counted.wait_4 AS wait_4,
        counted.wait_5 AS wait_5,
        counted.wait_6 AS wait_6,
        counted.wait_7 AS wait_7,
        counted.wait_8 AS wait_8,
        counted.wait_9 AS wait_9,
        counted.wait_10 AS wait_10,
        counted.wait_11 AS wait_11,
        counted.wait_12 AS wait_12,
        counted.wait_13 AS wait_13,
        counted.wait_14 AS wait_14,
        counted.wait_15 AS wait_15,
        counted.wait_16 AS wait_16,
        counted.wait_17 AS wait_17,
        counted.wait_18 AS wait_18,
        counted.wait_19 AS wait_19,
        counted.wait_20 AS wait_20,
        counted.wait_21 AS wait_21,
        counted.wait_22 AS wait_22,
        counted.run_0 AS run_0,
        counted.run_1 AS run_1,
        counted.run_2 AS run_2,
        counted.run_3 AS run_3,
        counted.run_4 AS run_4,
        counted.run_5 AS run_5,
        counted.run_6 AS run_6,
        counted.run_7 AS run_7,
        counted.run_8 AS run_8,
        counted.run_9 AS run_9,
        counted.run_10 AS run_10,
        counted.run_11 AS run_11,
        counted.run_12 AS run_12,
        counted.run_13 AS run_13,
        counted.run_14 AS run_14,
        counted.run_15 AS run_15,
        counted.run_16 AS run_16,
        counted.run_17 AS run_17,
        counted.run_18 AS run_18,
        counted.run_19 AS run_19,
        counted.run_20 AS run_20,
        counted.run_21 AS run_21,
        counted.run_22 AS run_22,
        CAST(NULL AS DOUBLE) AS sampled_ready,
        CAST(NULL AS DOUBLE) AS sampled_delayed,
        CAST(NULL AS DOUBLE) AS sampled_running,
        CAST(NULL AS DOUBLE) AS sampled_failed,
        CAST(NULL AS TEXT) AS partition_key,
        CAST(NULL AS CHAR(32)) AS dead_letter,
        CAST(NULL AS TEXT) AS failed_at,
        CAST(NULL AS BIGINT) AS waiting
    FROM (
        SELECT
            spans.step AS step,
            CAST(sum(spans.completed) AS BIGINT) AS completed,
            CAST(sum(spans.retried) AS BIGINT) AS retried,
            CAST(sum(spans.failed) AS BIGINT) AS failed,
            CAST(sum(spans.cancelled) AS BIGINT) AS cancelled,
            CAST(sum(spans.timed_out) AS BIGINT) AS timed_out,
            CAST(sum(spans.timed_out_last) AS BIGINT) AS timed_out_last,
            CAST(sum(spans.wait_0) AS BIGINT) AS wait_0,
            CAST(sum(spans.wait_1) AS BIGINT) AS wait_1,
            CAST(sum(spans.wait_2) AS BIGINT) AS wait_2,
            CAST(sum(spans.wait_3) AS BIGINT) AS wait_3,
            CAST(sum(spans.wait_4) AS BIGINT) AS wait_4,
            CAST(sum(spans.wait_5) AS BIGINT) AS wait_5,
            CAST(sum(spans.wait_6) AS BIGINT) AS wait_6,
            CAST(sum(spans.wait_7) AS BIGINT) AS wait_7,
            CAST(sum(spans.wait_8) AS BIGINT) AS wait_8,
            CAST(sum(spans.wait_9) AS BIGINT) AS wait_9,
            CAST(sum(spans.wait_10) AS BIGINT) AS wait_10,
            CAST(sum(spans.wait_11) AS BIGINT) AS wait_11,
            CAST(sum(spans.wait_12) AS BIGINT) AS wait_12,
            CAST(sum(spans.wait_13) AS BIGINT) AS wait_13,
            CAST(sum(spans.wait_14) AS BIGINT) AS wait_14,
            CAST(sum(spans.wait_15) AS BIGINT) AS wait_15,
            CAST(sum(spans.wait_16) AS BIGINT) AS wait_16,
            CAST(sum(spans.wait_17) AS BIGINT) AS wait_17,
            CAST(sum(spans.wait_18) AS BIGINT) AS wait_18,
            CAST(sum(spans.wait_19) AS BIGINT) AS wait_19,
            CAST(sum(spans.wait_20) AS BIGINT) AS wait_20,
            CAST(sum(spans.wait_21) AS BIGINT) AS wait_21,
            CAST(sum(spans.wait_22) AS BIGINT) AS wait_22,
            CAST(sum(spans.run_0) AS BIGINT) AS run_0,
            CAST(sum(spans.run_1) AS BIGINT) AS run_1,
            CAST(sum(spans.run_2) AS BIGINT) AS run_2,
            CAST(sum(spans.run_3) AS BIGINT) AS run_3,
            CAST(sum(spans.run_4) AS BIGINT) AS run_4,
            CAST(sum(spans.run_5) AS BIGINT) AS run_5,
            CAST(sum(spans.run_6) AS BIGINT) AS run_6,
            CAST(sum(spans.run_7) AS BIGINT) AS run_7,
            CAST(sum(spans.run_8) AS BIGINT) AS run_8,
            CAST(sum(spans.run_9) AS BIGINT) AS run_9,
            CAST(sum(spans.run_10) AS BIGINT) AS run_10,
            CAST(sum(spans.run_11) AS BIGINT) AS run_11,
            CAST(sum(spans.run_12) AS BIGINT) AS run_12,
            CAST(sum(spans.run_13) AS BIGINT) AS run_13,
            CAST(sum(spans.run_14) AS BIGINT) AS run_14,
            CAST(sum(spans.run_15) AS BIGINT) AS run_15,
            CAST(sum(spans.run_16) AS BIGINT) AS run_16,
            CAST(sum(spans.run_17) AS BIGINT) AS run_17,
            CAST(sum(spans.run_18) AS BIGINT) AS run_18,
            CAST(sum(spans.run_19) AS BIGINT) AS run_19,
            CAST(sum(spans.run_20) AS BIGINT) AS run_20,
            CAST(sum(spans.run_21) AS BIGINT) AS run_21,
            CAST(sum(spans.run_22) AS BIGINT) AS run_22
        FROM (
            SELECT
                (
                    (
                        CAST(strftime(:strftime_1, substr(task_metrics.at, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                            substr(task_metrics.at, :substr_3, :substr_4) AS INTEGER
                        )
                    ) - (
                        CAST(strftime(:strftime_2, substr(:since, :substr_5, :substr_6)) AS INTEGER) * :param_2 + CAST(
                            substr(:since, :substr_7, :substr_8) AS INTEGER
                        )
                    )
                ) / :step AS step,
                task_metrics.completed AS completed,
                task_metrics.retried AS retried,
                task_metrics.failed AS failed,
                task_metrics.cancelled AS cancelled,
                task_metrics.timed_out AS timed_out,
                task_metrics.timed_out_last AS timed_out_last,
                task_metrics.wait_0 AS wait_0,
                task_metrics.wait_1 AS wait_1,
                task_metrics.wait_2 AS wait_2,
                task_metrics.wait_3 AS wait_3,
                task_metrics.wait_4 AS wait_4,
                task_metrics.wait_5 AS wait_5,
                task_metrics.wait_6 AS wait_6,
                task_metrics.wait_7 AS wait_7,
                task_metrics.wait_8 AS wait_8,
                task_metrics.wait_9 AS wait_9,
                task_metrics.wait_10 AS wait_10,
                task_metrics.wait_11 AS wait_11,
                task_metrics.wait_12 AS wait_12,
                task_metrics.wait_13 AS wait_13,
                task_metrics.wait_14 AS wait_14,
                task_metrics.wait_15 AS wait_15,
                task_metrics.wait_16 AS wait_16,
                task_metrics.wait_17 AS wait_17,
                task_metrics.wait_18 AS wait_18,
                task_metrics.wait_19 AS wait_19,
                task_metrics.wait_20 AS wait_20,
                task_metrics.wait_21 AS wait_21,
                task_metrics.wait_22 AS wait_22,
                task_metrics.run_0 AS run_0,
                task_metrics.run_1 AS run_1,
                task_metrics.run_2 AS run_2,
                task_metrics.run_3 AS run_3,
                task_metrics.run_4 AS run_4,
                task_metrics.run_5 AS run_5,
                task_metrics.run_6 AS run_6,
                task_metrics.run_7 AS run_7,
                task_metrics.run_8 AS run_8,
                task_metrics.run_9 AS run_9,
                task_metrics.run_10 AS run_10,
                task_metrics.run_11 AS run_11,
                task_metrics.run_12 AS run_12,
                task_metrics.run_13 AS run_13,
                task_metrics.run_14 AS run_14,
                task_metrics.run_15 AS run_15,
                task_metrics.run_16 AS run_16,
                task_metrics.run_17 AS run_17,
                task_metrics.run_18 AS run_18,
                task_metrics.run_19 AS run_19,
                task_metrics.run_20 AS run_20,
                task_metrics.run_21 AS run_21,
                task_metrics.run_22 AS run_22
            FROM task_metrics
            WHERE
                task_metrics.at >= :since
                AND task_metrics.at < :until
                AND (:queue IS NULL OR task_metrics.queue = :queue)
                AND (:task_name IS NULL OR task_metrics.task_name = :task_name)
        ) AS spans
        GROUP BY spans.step
    ) AS counted
    UNION ALL
    SELECT
        'sampled' AS kind,
        (
            (
                CAST(strftime(:strftime_3, substr(sampled.begins_at, :substr_9, :substr_10)) AS INTEGER) * :param_3 + CAST(
                    substr(sampled.begins_at, :substr_11, :substr_12) AS INTEGER
                )
            ) - (
                CAST(strftime(:strftime_4, substr(:since, :substr_13, :substr_14)) AS INTEGER) * :param_4 + CAST(
                    substr(:since, :substr_15, :substr_16) AS INTEGER
                )
            )
        ) / :step AS step,
        CAST(NULL AS BIGINT) AS completed,
        CAST(NULL AS BIGINT) AS retried,
        CAST(NULL AS BIGINT) AS failed,
        CAST(NULL AS BIGINT) AS cancelled,
        CAST(NULL AS BIGINT) AS timed_out,
        CAST(NULL AS BIGINT) AS timed_out_last,
        CAST(NULL AS BIGINT) AS wait_0,
        CAST(NULL AS BIGINT) AS wait_1,
        CAST(NULL AS BIGINT) AS wait_2,
        CAST(NULL AS BIGINT) AS wait_3,
        CAST(NULL AS BIGINT) AS wait_4,
        CAST(NULL AS BIGINT) AS wait_5,
        CAST(NULL AS BIGINT) AS wait_6,
        CAST(NULL AS BIGINT) AS wait_7,
        CAST(NULL AS BIGINT) AS wait_8,
        CAST(NULL AS BIGINT) AS wait_9,
        CAST(NULL AS BIGINT) AS wait_10,
        CAST(NULL AS BIGINT) AS wait_11,
        CAST(NULL AS BIGINT) AS wait_12,
        CAST(NULL AS BIGINT) AS wait_13,
        CAST(NULL AS BIGINT) AS wait_14,
        CAST(NULL AS BIGINT) AS wait_15,
        CAST(NULL AS BIGINT) AS wait_16,
        CAST(NULL AS BIGINT) AS wait_17,
        CAST(NULL AS BIGINT) AS wait_18,
        CAST(NULL AS BIGINT) AS wait_19,
        CAST(NULL AS BIGINT) AS wait_20,
        CAST(NULL AS BIGINT) AS wait_21,
        CAST(NULL AS BIGINT) AS wait_22,
        CAST(NULL AS BIGINT) AS run_0,
        CAST(NULL AS BIGINT) AS run_1,
        CAST(NULL AS BIGINT) AS run_2,
        CAST(NULL AS BIGINT) AS run_3,
        CAST(NULL AS BIGINT) AS run_4,
        CAST(NULL AS BIGINT) AS run_5,
        CAST(NULL AS BIGINT) AS run_6,
        CAST(NULL AS BIGINT) AS run_7,
        CAST(NULL AS BIGINT) AS run_8,
        CAST(NULL AS BIGINT) AS run_9,
        CAST(NULL AS BIGINT) AS run_10,
        CAST(NULL AS BIGINT) AS run_11,
        CAST(NULL AS BIGINT) AS run_12,
        CAST(NULL AS BIGINT) AS run_13,
        CAST(NULL AS BIGINT) AS run_14,
        CAST(NULL AS BIGINT) AS run_15,
        CAST(NULL AS BIGINT) AS run_16,
        CAST(NULL AS BIGINT) AS run_17,
        CAST(NULL AS BIGINT) AS run_18,
        CAST(NULL AS BIGINT) AS run_19,
        CAST(NULL AS BIGINT) AS run_20,
        CAST(NULL AS BIGINT) AS run_21,
        CAST(NULL AS BIGINT) AS run_22,
        sampled.ready AS sampled_ready,
        sampled.delayed AS sampled_delayed,
        sampled.running AS sampled_running,
        sampled.failed AS sampled_failed,
        CAST(NULL AS TEXT) AS partition_key,
        CAST(NULL AS CHAR(32)) AS dead_letter,
        CAST(NULL AS TEXT) AS failed_at,
        CAST(NULL AS BIGINT) AS waiting
    FROM (
        SELECT
            moments.begins_at AS begins_at,
            sum(
                CAST(
                    CASE
                        WHEN (:queue IS NULL OR queue_samples.queue = :queue) THEN queue_samples.ready
                        ELSE 0
                    END AS DOUBLE
                )
            ) AS ready,
            sum(
                CAST(
                    CASE
                        WHEN (:queue IS NULL OR queue_samples.queue = :queue) THEN queue_samples.delayed
                        ELSE 0
                    END AS DOUBLE
                )
            ) AS delayed,
            sum(
                CAST(
                    CASE
                        WHEN (:queue IS NULL OR queue_samples.queue = :queue) THEN queue_samples.running
                        ELSE 0
                    END AS DOUBLE
                )
            ) AS running,
            sum(
                CAST(
                    CASE
                        WHEN (:queue IS NULL OR queue_samples.queue = :queue) THEN queue_samples.failed
                        ELSE 0
                    END AS DOUBLE
                )
            ) AS failed
        FROM moments
        JOIN queue_samples ON queue_samples.at = moments.at
        GROUP BY moments.begins_at
    ) AS sampled
) AS found
