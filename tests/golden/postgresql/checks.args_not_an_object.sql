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
            NOT CASE WHEN (
                task_executions.args ~ '^\{(?:"[^"\\]*": ?(?:"[^"\\]*"|-?[0-9.]+|true|false|null),? ?)*\}$'
            ) THEN true ELSE (
                regexp_replace(task_executions.args, '"([^"\\]|\\.)*"', '0', 'g') ~ '^[[:space:]]*\{([][{}:,[:space:]]|-?[0-9][0-9.eE+-]*|true|false|null)*\}[[:space:]]*$'
            )
                AND length(
                    translate(regexp_replace(task_executions.args, '"([^"\\]|\\.)*"', '0', 'g'), '{[', '')
                ) = length(
                    translate(regexp_replace(task_executions.args, '"([^"\\]|\\.)*"', '0', 'g'), '}]', '')
                )
                END,
            false
        ) AS args_not_an_object,
        coalesce(
            task_executions.headers IS NOT NULL
                AND NOT CASE
                    WHEN (
                        task_executions.headers ~ '^\{(?:"[^"\\]*": ?(?:"[^"\\]*"|-?[0-9.]+|true|false|null),? ?)*\}$'
                    ) THEN true
                    ELSE (
                        regexp_replace(task_executions.headers, '"([^"\\]|\\.)*"', '0', 'g') ~ '^[[:space:]]*\{([][{}:,[:space:]]|-?[0-9][0-9.eE+-]*|true|false|null)*\}[[:space:]]*$'
                    )
                AND length(
                    translate(regexp_replace(task_executions.headers, '"([^"\\]|\\.)*"', '0', 'g'), '{[', '')
                ) = length(
                    translate(regexp_replace(task_executions.headers, '"([^"\\]|\\.)*"', '0', 'g'), '}]', '')
                )
                END,
            false
        ) AS headers_not_an_object,
        coalesce(
            task_executions.result IS NOT NULL
                AND NOT CASE
                    WHEN (task_executions.result ~ '^(?:"[^"\\]*"|-?[0-9.]+|true|false|null)$') THEN true
                    ELSE (
                        regexp_replace(task_executions.result, '"([^"\\]|\\.)*"', '0', 'g') ~ '^([][{}:,[:space:]]|-?[0-9][0-9.eE+-]*|true|false|null)+$'
                    )
                AND length(
                    translate(regexp_replace(task_executions.result, '"([^"\\]|\\.)*"', '0', 'g'), '{[', '')
                ) = length(
                    translate(regexp_replace(task_executions.result, '"([^"\\]|\\.)*"', '0', 'g'), '}]', '')
                )
                END,
            false
        ) AS result_not_json,
        coalesce(
            task_executions.lease_seconds > 3153600000.0 OR task_executions.timeout_seconds > 3153600000.0,
            false
        ) AS lease_too_long,
        coalesce(
            NOT (
                task_executions.created_at >= '1970-01-01 00:00:00+00'
                    AND task_executions.created_at < '9001-01-01 00:00:00+00'
            )
                OR NOT (
                    task_executions.expires_at >= '1970-01-01 00:00:00+00'
                        AND task_executions.expires_at < '9001-01-01 00:00:00+00'
                )
                OR NOT (
                    task_executions.first_started_at >= '1970-01-01 00:00:00+00'
                        AND task_executions.first_started_at < '9001-01-01 00:00:00+00'
                )
                OR NOT (
                    task_executions.retry_at >= '1970-01-01 00:00:00+00'
                        AND task_executions.retry_at < '9001-01-01 00:00:00+00'
                )
                OR NOT (
                    task_executions.completed_at >= '1970-01-01 00:00:00+00'
                        AND task_executions.completed_at < '9001-01-01 00:00:00+00'
                )
                OR NOT (
                    task_executions.cancel_requested_at >= '1970-01-01 00:00:00+00'
                        AND task_executions.cancel_requested_at < '9001-01-01 00:00:00+00'
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
                OR task_executions.position > 1000000000000000000,
            false
        ) AS task_out_of_bounds,
        coalesce(task_executions.on_dead_letter = 'hold' AND task_executions.partition_key IS NULL, false) AS hold_without_key,
        coalesce(
            CASE WHEN (task_executions.completed_at IS NOT NULL) THEN task_executions.worker_id IS NOT NULL
                OR (task_executions.status NOT IN ('Cancelled', 'Completed', 'Failed'))
                    WHEN (task_executions.worker_id IS NULL) THEN task_executions.status != 'Ready'
                    ELSE task_executions.status != 'Running'
                END,
            false
        ) AS status_contradicts_row
    FROM task_executions
) AS found
WHERE
    found.args_not_an_object
    OR found.headers_not_an_object
    OR found.result_not_json
    OR found.lease_too_long
    OR found.task_out_of_bounds
    OR found.hold_without_key
    OR found.status_contradicts_row
