-- subscriber
SELECT
    substr(:pipeline_execution_id, 1, 28) || printf(:printf_1, row_number() OVER (ORDER BY found.task_name)) AS id,
    :pipeline_execution_id AS pipeline_execution_id,
    found.task_name,
    found.queue,
    found.priority,
    found.max_attempts,
    found.lease_seconds,
    found.timeout_seconds,
    found.on_dead_letter,
    found.parameter
FROM (/* fanout.found-1 */) AS found
WHERE found.nth = 1
ORDER BY found.task_name;

-- entry
WITH subscriber AS MATERIALIZED (
    SELECT
        subscriber_rows."key" AS ordinal,
        json_extract(subscriber_rows.value, '$[0]') AS id,
        json_extract(subscriber_rows.value, '$[1]') AS queue,
        json_extract(subscriber_rows.value, '$[2]') AS priority,
        json_extract(subscriber_rows.value, '$[3]') AS parameter
    FROM json_each(:subscriber) AS subscriber_rows
)
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
    subscriber.id,
    subscriber.queue,
    subscriber.priority,
    :partition_key AS anon_1,
    coalesce(
        (
            SELECT sqlite_sequence.seq
            FROM sqlite_sequence
            WHERE sqlite_sequence.name = 'task_outbox'
        ),
        0
    ) + row_number() OVER (ORDER BY subscriber.ordinal) AS anon_2,
    :topic AS anon_3,
    coalesce(
        :available_at,
        strftime(
            :strftime_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(:delay_seconds * :param_2) AS INTEGER)
            ) / 1000000,
            :strftime_3
        ) || printf(
            :printf_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(:delay_seconds * :param_2) AS INTEGER)
            ) % 1000000
        )
    ) AS coalesce_1,
    coalesce(
        :expires_at,
        strftime(
            :strftime_4,
            (
                CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_3 + CAST(
                    substr(:now, :substr_7, :substr_8) AS INTEGER
                ) + CAST(round(:expires_seconds * :param_4) AS INTEGER)
            ) / 1000000,
            :strftime_6
        ) || printf(
            :printf_2,
            (
                CAST(strftime(:strftime_5, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_3 + CAST(
                    substr(:now, :substr_7, :substr_8) AS INTEGER
                ) + CAST(round(:expires_seconds * :param_4) AS INTEGER)
            ) % 1000000
        )
    ) AS coalesce_2,
    :now AS anon_4
FROM subscriber
WHERE
    subscriber.parameter IS NOT NULL
    AND (SELECT count(subscriber.id) AS count_1 FROM subscriber) <= :most_subscribers
RETURNING
    task_execution_id AS id,
    position,
    available_at,
    expires_at,
    CASE WHEN (partition_key >= '') THEN position END AS place;

-- execution
WITH
    subscriber AS MATERIALIZED (/* fanout.subscriber-1 */),
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
    subscriber.id,
    subscriber.pipeline_execution_id,
    subscriber.task_name,
    subscriber.queue,
    :topic AS anon_1,
    :partition_key AS anon_2,
    entry.position,
    subscriber.priority,
    '{"' || subscriber.parameter || '":' || :payload || '}' AS anon_3,
    :headers AS anon_4,
    'Ready',
    1,
    subscriber.max_attempts,
    0,
    subscriber.lease_seconds,
    subscriber.timeout_seconds,
    0,
    CASE WHEN :may_hold THEN subscriber.on_dead_letter ELSE 'release' END AS anon_5,
    entry.expires_at,
    :now AS anon_6,
    :now AS anon_7
FROM subscriber
JOIN entry ON subscriber.id = entry.id;

-- event
WITH
    subscriber AS MATERIALIZED (
        SELECT
            subscriber_rows."key" AS ordinal,
            json_extract(subscriber_rows.value, '$[0]') AS id,
            json_extract(subscriber_rows.value, '$[1]') AS pipeline_execution_id
        FROM json_each(:subscriber) AS subscriber_rows
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
    subscriber.pipeline_execution_id,
    subscriber.id,
    'task_created',
    CASE
        WHEN (entry.place IS NULL) THEN json_object('available_at', entry.available_at)
        ELSE json_patch('{}', json_object('available_at', entry.available_at, 'position', entry.place))
    END AS anon_1,
    NULL AS anon_2,
    NULL AS anon__1,
    :now AS anon_3
FROM subscriber
JOIN entry ON subscriber.id = entry.id;

-- unrouted
WITH subscriber AS MATERIALIZED (
    SELECT subscriber_rows."key" AS ordinal, subscriber_rows.value AS id
    FROM json_each(:subscriber) AS subscriber_rows
)
INSERT INTO execution_events (pipeline_execution_id, event_type, event_data, created_at)
SELECT
    :pipeline_execution_id AS anon_1,
    'event_unrouted',
    '{"topic":' || :quoted_topic || ',"payload":' || :payload || '}' AS anon_2,
    :now AS anon_3
WHERE NOT (EXISTS (SELECT subscriber.id FROM subscriber))
