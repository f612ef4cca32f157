SELECT
    CAST(
        floor(
            (
                date_part('epoch', task_metrics.at - %(since)s::TIMESTAMP WITH TIME ZONE) * 1000000.0::float8 + 0.5::float8
            ) / CAST(CAST(%(step)s::BIGINT AS DOUBLE PRECISION) AS DOUBLE PRECISION)
        ) AS BIGINT
    ) AS step,
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
    task_metrics.at >= %(since)s::TIMESTAMP WITH TIME ZONE
    AND task_metrics.at < %(until)s::TIMESTAMP WITH TIME ZONE
    AND (%(queue)s::VARCHAR IS NULL OR task_metrics.queue = %(queue)s::VARCHAR)
    AND (%(task_name)s::VARCHAR IS NULL OR task_metrics.task_name = %(task_name)s::VARCHAR)
