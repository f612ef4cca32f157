SELECT
    seen.last,
    CAST(seen.sum AS TEXT) AS events,
    there.live,
    there.started,
    of_queue_settings.rows AS queue_settings_rows,
    of_queue_settings.changed AS queue_settings_changed,
    of_task_schedules.rows AS task_schedules_rows,
    of_task_schedules.changed AS task_schedules_changed,
    (SELECT max(task_metrics.at) AS max_1 FROM task_metrics) AS metrics_at,
    (SELECT max(queue_samples.at) AS max_2 FROM queue_samples) AS samples_at
FROM
    (
        SELECT max(newest.sequence_num) AS last, sum(newest.sequence_num) AS sum
        FROM (
            SELECT execution_events.sequence_num AS sequence_num
            FROM execution_events
            ORDER BY execution_events.sequence_num DESC
            LIMIT 200
            OFFSET :param_1
        ) AS newest
    ) AS seen,
    (
        SELECT
            count(*) FILTER (
                WHERE workers.last_seen_at >= (
                    strftime(
                        :strftime_1,
                        (
                            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_2 + CAST(
                                substr(:now, :substr_3, :substr_4) AS INTEGER
                            ) + CAST(round(:live_since * :param_3) AS INTEGER)
                        ) / 1000000,
                        :strftime_3
                    ) || printf(
                        :printf_1,
                        (
                            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_2 + CAST(
                                substr(:now, :substr_3, :substr_4) AS INTEGER
                            ) + CAST(round(:live_since * :param_3) AS INTEGER)
                        ) % 1000000
                    )
                )
                    AND workers.ended_at IS NULL
            ) AS live,
            max(workers.started_at) AS started
        FROM workers
    ) AS there,
    (
        SELECT count(*) AS rows, max(queue_settings.updated_at) AS changed
        FROM queue_settings
    ) AS of_queue_settings,
    (
        SELECT count(*) AS rows, max(task_schedules.updated_at) AS changed
        FROM task_schedules
    ) AS of_task_schedules
