-- alive
WITH given AS MATERIALIZED (
    SELECT given_rows."key" AS ordinal, given_rows.value AS holder
    FROM json_each(:given) AS given_rows
)
SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.id IN (SELECT given.holder FROM given)
    AND task_executions.status IN ('Ready', 'Running');

-- key
WITH
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS id,
            json_extract(given_rows.value, '$[1]') AS task_name,
            json_extract(given_rows.value, '$[2]') AS idempotency_key,
            json_extract(given_rows.value, '$[3]') AS unique_seconds,
            json_extract(given_rows.value, '$[4]') AS until_finished,
            json_extract(given_rows.value, '$[5]') AS holder
        FROM json_each(:given) AS given_rows
    ),
    alive AS MATERIALIZED (
        SELECT alive_rows."key" AS ordinal, alive_rows.value AS id
        FROM json_each(:alive) AS alive_rows
    )
UPDATE idempotency_keys
SET
    task_execution_id=given.id,
    expires_at=(
        strftime(
            :strftime_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(given.unique_seconds * :unique_seconds_1) AS INTEGER)
            ) / 1000000,
            :strftime_3
        ) || printf(
            :printf_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(given.unique_seconds * :unique_seconds_1) AS INTEGER)
            ) % 1000000
        )
    ),
    until_finished=given.until_finished,
    created_at=:now
FROM given
WHERE
    idempotency_keys.task_execution_id IN (SELECT given.holder FROM given)
    AND idempotency_keys.task_execution_id = given.holder
    AND idempotency_keys.scope = given.task_name
    AND idempotency_keys."key" = given.idempotency_key
    AND (
        idempotency_keys.expires_at <= :now
            OR (idempotency_keys.task_execution_id NOT IN (SELECT alive.id FROM alive))
    )
RETURNING task_execution_id AS id;

-- lost
WITH
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS id,
            json_extract(given_rows.value, '$[1]') AS holder,
            json_extract(given_rows.value, '$[2]') AS lost_key
        FROM json_each(:given) AS given_rows
    ),
    "key" AS MATERIALIZED (
        SELECT key_rows."key" AS ordinal, key_rows.value AS id
        FROM json_each(:key) AS key_rows
    )
UPDATE dead_letters
SET lost_key=given.lost_key
FROM given
WHERE
    dead_letters.task_execution_id IN (SELECT given.holder FROM given)
    AND dead_letters.task_execution_id = given.holder
    AND given.lost_key IS NOT NULL
    AND given.id IN (SELECT "key".id FROM "key");

-- entry
WITH
    given AS MATERIALIZED (/* enqueue.given-1 */),
    "key" AS MATERIALIZED (
        SELECT key_rows."key" AS ordinal, key_rows.value AS id
        FROM json_each(:key) AS key_rows
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
WHERE given.id IN (SELECT "key".id FROM "key")
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
            json_extract(given_rows.value, '$[1]') AS pipeline_execution_id,
            json_extract(given_rows.value, '$[2]') AS idempotency_key,
            json_extract(given_rows.value, '$[3]') AS unique_seconds,
            json_extract(given_rows.value, '$[4]') AS until_finished
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
        WHEN (
            entry.place IS NULL
                AND given.idempotency_key IS NULL
                AND CASE
                    WHEN (given.idempotency_key IS NOT NULL) THEN strftime(
                        :strftime_1,
                        (
                            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                                substr(:now, :substr_3, :substr_4) AS INTEGER
                            ) + CAST(round(given.unique_seconds * :unique_seconds_1) AS INTEGER)
                        ) / 1000000,
                        :strftime_3
                    ) || printf(
                        :printf_1,
                        (
                            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                                substr(:now, :substr_3, :substr_4) AS INTEGER
                            ) + CAST(round(given.unique_seconds * :unique_seconds_1) AS INTEGER)
                        ) % 1000000
                    )
                END IS NULL
                AND CASE
                    WHEN (given.idempotency_key IS NOT NULL AND given.until_finished = 1) THEN 1
                END IS NULL
        ) THEN json_object('available_at', entry.available_at)
        ELSE json_patch(
            '{}',
            json_object(
                'available_at',
                entry.available_at,
                'position',
                entry.place,
                'idempotency_key',
                given.idempotency_key,
                'unique_until',
                CASE
                    WHEN (given.idempotency_key IS NOT NULL) THEN strftime(
                        :strftime_1,
                        (
                            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                                substr(:now, :substr_3, :substr_4) AS INTEGER
                            ) + CAST(round(given.unique_seconds * :unique_seconds_1) AS INTEGER)
                        ) / 1000000,
                        :strftime_3
                    ) || printf(
                        :printf_1,
                        (
                            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                                substr(:now, :substr_3, :substr_4) AS INTEGER
                            ) + CAST(round(given.unique_seconds * :unique_seconds_1) AS INTEGER)
                        ) % 1000000
                    )
                END,
                'unique_until_finished',
                CASE WHEN (given.idempotency_key IS NOT NULL AND given.until_finished = 1) THEN 1 END
            )
        )
    END AS anon_1,
    NULL AS anon_2,
    NULL AS anon__1,
    :now AS anon_3
FROM given
JOIN entry ON given.id = entry.id
