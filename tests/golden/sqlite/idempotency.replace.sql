-- waiting
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS holder
    FROM json_each(:given) AS given_rows
)
SELECT task_outbox.task_execution_id AS id
FROM task_outbox
WHERE task_outbox.task_execution_id IN (SELECT given.holder FROM given)
ORDER BY task_outbox.task_execution_id;

-- gone
WITH waiting AS MATERIALIZED (
    SELECT waiting_rows."key" AS ordinal, waiting_rows.value AS id
    FROM json_each(:waiting) AS waiting_rows
)
DELETE FROM task_outbox
WHERE task_outbox.task_execution_id IN (SELECT waiting.id FROM waiting)
RETURNING task_execution_id AS id, queue AS left_queue, partition_key AS left_key;

-- replaced
WITH
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS queue,
            json_extract(given_rows.value, '$[1]') AS priority,
            json_extract(given_rows.value, '$[2]') AS args,
            json_extract(given_rows.value, '$[3]') AS headers,
            json_extract(given_rows.value, '$[4]') AS max_attempts,
            json_extract(given_rows.value, '$[5]') AS lease_seconds,
            json_extract(given_rows.value, '$[6]') AS timeout_seconds,
            json_extract(given_rows.value, '$[7]') AS partition_key,
            json_extract(given_rows.value, '$[8]') AS on_dead_letter,
            json_extract(given_rows.value, '$[9]') AS topic,
            json_extract(given_rows.value, '$[10]') AS expires_at,
            json_extract(given_rows.value, '$[11]') AS expires_seconds,
            json_extract(given_rows.value, '$[12]') AS holder
        FROM json_each(:given) AS given_rows
    ),
    gone AS MATERIALIZED (
        SELECT gone_rows."key" AS ordinal, gone_rows.value AS id
        FROM json_each(:gone) AS gone_rows
    )
UPDATE task_executions
SET
    queue=given.queue,
    topic=given.topic,
    partition_key=given.partition_key,
    priority=given.priority,
    args=given.args,
    headers=given.headers,
    attempt=1,
    max_attempts=given.max_attempts,
    recovery_attempts=0,
    lease_seconds=given.lease_seconds,
    timeout_seconds=given.timeout_seconds,
    on_dead_letter=given.on_dead_letter,
    expires_at=coalesce(
        given.expires_at,
        strftime(
            :strftime_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(given.expires_seconds * :expires_seconds_1) AS INTEGER)
            ) / 1000000,
            :strftime_3
        ) || printf(
            :printf_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(given.expires_seconds * :expires_seconds_1) AS INTEGER)
            ) % 1000000
        )
    ),
    retry_at=NULL,
    updated_at=:now
FROM given
WHERE
    task_executions.id IN (SELECT gone.id FROM gone)
    AND task_executions.id = given.holder
    AND task_executions.status = 'Ready'
RETURNING
    id,
    pipeline_execution_id,
    task_name,
    queue,
    priority,
    partition_key,
    position,
    topic,
    expires_at,
    on_dead_letter,
    status,
    attempt,
    recovery_attempts;

-- entry
WITH
    replaced AS MATERIALIZED (
        SELECT
            replaced_rows."key" AS ordinal,
            json_extract(replaced_rows.value, '$[0]') AS id,
            json_extract(replaced_rows.value, '$[1]') AS queue,
            json_extract(replaced_rows.value, '$[2]') AS priority,
            json_extract(replaced_rows.value, '$[3]') AS partition_key,
            json_extract(replaced_rows.value, '$[4]') AS position,
            json_extract(replaced_rows.value, '$[5]') AS topic,
            json_extract(replaced_rows.value, '$[6]') AS expires_at,
            json_extract(replaced_rows.value, '$[7]') AS status
        FROM json_each(:replaced) AS replaced_rows
    ),
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS available_at,
            json_extract(given_rows.value, '$[1]') AS delay_seconds,
            json_extract(given_rows.value, '$[2]') AS holder
        FROM json_each(:given) AS given_rows
    )
INSERT INTO task_outbox (
    task_execution_id,
    queue,
    priority,
    partition_key,
    position,
    topic,
    expires_at,
    available_at,
    created_at
)
SELECT
    replaced.id,
    replaced.queue,
    replaced.priority,
    replaced.partition_key,
    replaced.position,
    replaced.topic,
    replaced.expires_at,
    CAST(
        coalesce(
            given.available_at,
            strftime(
                :strftime_1,
                (
                    CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                        substr(:now, :substr_3, :substr_4) AS INTEGER
                    ) + CAST(round(given.delay_seconds * :delay_seconds_1) AS INTEGER)
                ) / 1000000,
                :strftime_3
            ) || printf(
                :printf_1,
                (
                    CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                        substr(:now, :substr_3, :substr_4) AS INTEGER
                    ) + CAST(round(given.delay_seconds * :delay_seconds_1) AS INTEGER)
                ) % 1000000
            )
        ) AS TEXT
    ) AS coalesce_1,
    :now AS anon_1
FROM replaced
JOIN given ON replaced.id = given.holder
WHERE replaced.status = 'Ready';

-- event
WITH
    replaced AS MATERIALIZED (
        SELECT
            replaced_rows."key" AS ordinal,
            json_extract(replaced_rows.value, '$[0]') AS id,
            json_extract(replaced_rows.value, '$[1]') AS pipeline_execution_id,
            json_extract(replaced_rows.value, '$[2]') AS partition_key,
            json_extract(replaced_rows.value, '$[3]') AS position,
            json_extract(replaced_rows.value, '$[4]') AS attempt,
            json_extract(replaced_rows.value, '$[5]') AS recovery_attempts
        FROM json_each(:replaced) AS replaced_rows
    ),
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS id,
            json_extract(given_rows.value, '$[1]') AS available_at,
            json_extract(given_rows.value, '$[2]') AS delay_seconds,
            json_extract(given_rows.value, '$[3]') AS holder
        FROM json_each(:given) AS given_rows
    )
INSERT INTO execution_events (
    pipeline_execution_id,
    task_execution_id,
    event_type,
    event_data,
    worker_id,
    lease_token,
    created_at
)
SELECT
    replaced.pipeline_execution_id,
    replaced.id,
    'task_replaced',
    json_patch(
        '{}',
        json_object(
            'available_at',
            coalesce(
                given.available_at,
                strftime(
                    :strftime_1,
                    (
                        CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                            substr(:now, :substr_3, :substr_4) AS INTEGER
                        ) + CAST(round(given.delay_seconds * :delay_seconds_1) AS INTEGER)
                    ) / 1000000,
                    :strftime_3
                ) || printf(
                    :printf_1,
                    (
                        CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                            substr(:now, :substr_3, :substr_4) AS INTEGER
                        ) + CAST(round(given.delay_seconds * :delay_seconds_1) AS INTEGER)
                    ) % 1000000
                )
            ),
            'attempt',
            replaced.attempt,
            'recovery_attempts',
            replaced.recovery_attempts,
            'request',
            given.id,
            'position',
            CASE WHEN (replaced.partition_key IS NOT NULL) THEN replaced.position END
        )
    ) AS json_patch_1,
    NULL AS anon_1,
    NULL AS anon__1,
    :now AS anon_2
FROM replaced
JOIN given ON replaced.id = given.holder
