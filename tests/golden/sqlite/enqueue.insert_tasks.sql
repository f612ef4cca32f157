-- entry
WITH given AS MATERIALIZED (/* enqueue.given-1 */)
INSERT INTO task_outbox (
    task_execution_id,
    queue,
    priority,
    partition_key,
    position,
    topic,
    available_at,
    expires_at,
    created_at
)
SELECT
    given.id,
    given.queue,
    given.priority,
    given.partition_key,
    coalesce(
        (
            SELECT sqlite_sequence.seq
            FROM sqlite_sequence
            WHERE sqlite_sequence.name = 'task_outbox'
        ),
        0
    ) + row_number() OVER (ORDER BY given.ordinal) AS anon_1,
    given.topic,
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
    ) AS coalesce_1,
    coalesce(
        given.expires_at,
        strftime(
            :strftime_4,
            (
                CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_2 + CAST(
                    substr(:now, :substr_7, :substr_8) AS INTEGER
                ) + CAST(round(given.expires_seconds * :expires_seconds_1) AS INTEGER)
            ) / 1000000,
            :strftime_6
        ) || printf(
            :printf_2,
            (
                CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_2 + CAST(
                    substr(:now, :substr_7, :substr_8) AS INTEGER
                ) + CAST(round(given.expires_seconds * :expires_seconds_1) AS INTEGER)
            ) % 1000000
        )
    ) AS coalesce_2,
    :now AS anon_2
FROM given
RETURNING
    task_execution_id AS id,
    position,
    available_at,
    expires_at,
    CASE WHEN (partition_key >= '') THEN position END AS place;

-- execution
WITH
    given AS MATERIALIZED (/* enqueue.given-2 */),
    entry AS MATERIALIZED (
        SELECT
            entry_rows."key" AS ordinal,
            json_extract(entry_rows.value, '$[0]') AS id,
            json_extract(entry_rows.value, '$[1]') AS position,
            json_extract(entry_rows.value, '$[2]') AS expires_at
        FROM json_each(:entry) AS entry_rows
    )
INSERT INTO task_executions (
    id,
    pipeline_execution_id,
    task_name,
    queue,
    topic,
    partition_key,
    position,
    priority,
    args,
    headers,
    status,
    attempt,
    max_attempts,
    recovery_attempts,
    lease_seconds,
    timeout_seconds,
    lease_token,
    on_dead_letter,
    expires_at,
    created_at,
    updated_at
)
SELECT
    given.id,
    given.pipeline_execution_id,
    given.task_name,
    given.queue,
    given.topic,
    given.partition_key,
    entry.position,
    given.priority,
    given.args,
    given.headers,
    'Ready',
    1,
    given.max_attempts,
    0,
    given.lease_seconds,
    given.timeout_seconds,
    0,
    given.on_dead_letter,
    entry.expires_at,
    :now AS anon_1,
    :now AS anon_2
FROM given
JOIN entry ON given.id = entry.id;

-- event
WITH
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS id,
            json_extract(given_rows.value, '$[1]') AS pipeline_execution_id
        FROM json_each(:given) AS given_rows
    ),
    entry AS MATERIALIZED (
        SELECT
            entry_rows."key" AS ordinal,
            json_extract(entry_rows.value, '$[0]') AS id,
            json_extract(entry_rows.value, '$[1]') AS available_at,
            json_extract(entry_rows.value, '$[2]') AS place
        FROM json_each(:entry) AS entry_rows
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
    given.pipeline_execution_id,
    given.id,
    'task_created',
    CASE
        WHEN (entry.place IS NULL) THEN json_object('available_at', entry.available_at)
        ELSE json_patch('{}', json_object('available_at', entry.available_at, 'position', entry.place))
    END AS anon_1,
    NULL AS anon_2,
    NULL AS anon__1,
    :now AS anon_3
FROM given
JOIN entry ON given.id = entry.id
