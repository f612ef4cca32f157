SELECT
    found.id,
    found.args_not_an_object,
    found.headers_not_an_object,
    found.result_not_json,
    found.lease_too_long,
    found.task_out_of_bounds,
    found.hold_without_key,
    found.status_contradicts_row
FROM (
    SELECT
        task_executions.id AS id,
        coalesce(
            CASE
                WHEN (json_valid(task_executions.args) = 1) THEN json_type(task_executions.args)
                ELSE ''
            END != 'object',
            0
        ) AS args_not_an_object,
        coalesce(
            task_executions.headers IS NOT NULL
                AND CASE
                    WHEN (json_valid(task_executions.headers) = 1) THEN json_type(task_executions.headers)
                    ELSE ''
                END != 'object',
            0
        ) AS headers_not_an_object,
        coalesce(task_executions.result IS NOT NULL AND json_valid(task_executions.result) != 1, 0) AS result_not_json,
        coalesce(
            task_executions.lease_seconds > 3153600000.0 OR task_executions.timeout_seconds > 3153600000.0,
            0
        ) AS lease_too_long,
        coalesce(
            NOT (
                (task_executions.created_at GLOB '????-??-??T??:??:??.??????+00:00')
                    AND (
                        task_executions.created_at IS NULL
                            OR julianday(task_executions.created_at) IS NOT NULL
                    )
                    AND task_executions.created_at >= '1970'
                    AND task_executions.created_at < '9001'
            )
                OR NOT (
                    (task_executions.expires_at GLOB '????-??-??T??:??:??.??????+00:00')
                        AND (
                            task_executions.expires_at IS NULL
                                OR julianday(task_executions.expires_at) IS NOT NULL
                        )
                        AND task_executions.expires_at >= '1970'
                        AND task_executions.expires_at < '9001'
                )
                OR NOT (
                    (task_executions.first_started_at GLOB '????-??-??T??:??:??.??????+00:00')
                        AND (
                            task_executions.first_started_at IS NULL
                                OR julianday(task_executions.first_started_at) IS NOT NULL
                        )
                        AND task_executions.first_started_at >= '1970'
                        AND task_executions.first_started_at < '9001'
                )
                OR NOT (
                    (task_executions.retry_at GLOB '????-??-??T??:??:??.??????+00:00')
                        AND (
                            task_executions.retry_at IS NULL
                                OR julianday(task_executions.retry_at) IS NOT NULL
                        )
                        AND task_executions.retry_at >= '1970'
                        AND task_executions.retry_at < '9001'
                )
                OR NOT (
                    (task_executions.completed_at GLOB '????-??-??T??:??:??.??????+00:00')
                        AND (
                            task_executions.completed_at IS NULL
                                OR julianday(task_executions.completed_at) IS NOT NULL
                        )
                        AND task_executions.completed_at >= '1970'
                        AND task_executions.completed_at < '9001'
                )
                OR NOT (
                    (task_executions.cancel_requested_at GLOB '????-??-??T??:??:??.??????+00:00')
                        AND (
                            task_executions.cancel_requested_at IS NULL
                                OR julianday(task_executions.cancel_requested_at) IS NOT NULL
                        )
                        AND task_executions.cancel_requested_at >= '1970'
                        AND task_executions.cancel_requested_at < '9001'
                )
                OR task_executions.queue = ''
                OR task_executions.partition_key = ''
                OR task_executions.lease_seconds <= 0
                OR task_executions.timeout_seconds <= 0
                OR task_executions.attempt < 0
                OR task_executions.attempt > 2147483646
                OR task_executions.recovery_attempts < 0
                OR task_executions.recovery_attempts > 2147483646
                OR task_executions.lease_token < 0
                OR task_executions.lease_token > 1000000000000000000
                OR task_executions.position < 0
                OR task_executions.position > 1000000000000000000
                OR NOT (length(task_executions.id) = 32 AND (task_executions.id GLOB '*[^0-9a-f]*') = 0)
                OR NOT (
                    length(task_executions.pipeline_execution_id) = 32
                        AND (task_executions.pipeline_execution_id GLOB '*[^0-9a-f]*') = 0
                ),
            0
        ) AS task_out_of_bounds,
        coalesce(task_executions.on_dead_letter = 'hold' AND task_executions.partition_key IS NULL, 0) AS hold_without_key,
        coalesce(
            CASE WHEN (task_executions.completed_at IS NOT NULL) THEN task_executions.worker_id IS NOT NULL
                OR (task_executions.status NOT IN ('Cancelled', 'Completed', 'Failed'))
                    WHEN (task_executions.worker_id IS NULL) THEN task_executions.status != 'Ready'
                    ELSE task_executions.status != 'Running'
                END,
            0
        ) AS status_contradicts_row
    FROM task_executions
) AS found
WHERE
    found.args_not_an_object = 1
    OR found.headers_not_an_object = 1
    OR found.result_not_json = 1
    OR found.lease_too_long = 1
    OR found.task_out_of_bounds = 1
    OR found.hold_without_key = 1
    OR found.status_contradicts_row = 1
