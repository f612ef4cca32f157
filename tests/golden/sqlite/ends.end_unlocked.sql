-- held
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS id,
        json_extract(given_rows.value, '$[1]') AS lease_token
    FROM json_each(:given) AS given_rows
)
SELECT task_leases.task_execution_id AS id
FROM task_leases
JOIN given ON task_leases.task_execution_id = given.id
WHERE
    task_leases.task_execution_id IN (SELECT given.id FROM given)
    AND task_leases.lease_token = given.lease_token
    AND task_leases.worker_id = :worker_id
ORDER BY task_leases.task_execution_id;

-- unlocked
WITH held AS MATERIALIZED (
    SELECT held_rows."key" AS ordinal, held_rows.value AS id
    FROM json_each(:held) AS held_rows
)
SELECT task_executions.id
FROM task_executions
WHERE task_executions.id IN (SELECT held.id FROM held)
ORDER BY task_executions.id;

-- freed
WITH
    unlocked AS MATERIALIZED (
        SELECT unlocked_rows."key" AS ordinal, unlocked_rows.value AS id
        FROM json_each(:unlocked) AS unlocked_rows
    ),
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS id,
            json_extract(given_rows.value, '$[1]') AS lease_token
        FROM json_each(:given) AS given_rows
    )
DELETE FROM task_leases
WHERE
    task_leases.task_execution_id IN (SELECT unlocked.id FROM unlocked)
    AND task_leases.worker_id = :worker_id
    AND (
        (task_leases.task_execution_id, task_leases.lease_token) IN (
            SELECT given.id, given.lease_token FROM given
        )
    ) IS 1
RETURNING task_execution_id AS id;

-- ended
WITH
    given AS MATERIALIZED (/* ends.given-1 */),
    freed AS MATERIALIZED (
        SELECT freed_rows."key" AS ordinal, freed_rows.value AS id
        FROM json_each(:freed) AS freed_rows
    )
UPDATE task_executions
SET
    status=CASE
        WHEN (given.status = 'Ready' AND task_executions.cancel_requested_at IS NULL) THEN given.status
        WHEN (given.status = 'Ready') THEN 'Cancelled'
        ELSE given.status
    END,
    attempt=(
        task_executions.attempt + CASE
            WHEN (given.event_type = 'task_retry_scheduled' AND task_executions.cancel_requested_at IS NULL) THEN :param_1
            ELSE :param_2
        END
    ),
    recovery_attempts=CASE
        WHEN (given.event_type = 'task_released') THEN task_executions.recovery_attempts
        ELSE 0
    END,
    worker_id=NULL,
    retry_at=CASE
        WHEN (given.event_type = 'task_retry_scheduled' AND task_executions.cancel_requested_at IS NULL) THEN coalesce(
            given.available_at,
            strftime(
                :strftime_1,
                (
                    CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_3 + CAST(
                        substr(:now, :substr_3, :substr_4) AS INTEGER
                    ) + CAST(round(given.delay_seconds * :delay_seconds_1) AS INTEGER)
                ) / 1000000,
                :strftime_3
            ) || printf(
                :printf_1,
                (
                    CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_3 + CAST(
                        substr(:now, :substr_3, :substr_4) AS INTEGER
                    ) + CAST(round(given.delay_seconds * :delay_seconds_1) AS INTEGER)
                ) % 1000000
            )
        )
        ELSE NULL
    END,
    started_at=CASE
        WHEN (given.status = 'Ready' AND task_executions.cancel_requested_at IS NULL) THEN NULL
        ELSE task_executions.started_at
    END,
    completed_at=CASE
        WHEN (given.status = 'Ready' AND task_executions.cancel_requested_at IS NULL) THEN NULL
        ELSE :now
    END,
    updated_at=:now,
    last_error=coalesce(given.error, task_executions.last_error),
    result=given.result
FROM given
WHERE
    task_executions.id IN (SELECT freed.id FROM freed)
    AND task_executions.id = given.id
    AND task_executions.lease_token = given.lease_token
    AND task_executions.worker_id = :worker_id
    AND task_executions.status = 'Running'
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
    (
        SELECT mine.queue
        FROM queue_settings AS mine
        WHERE
            concurrency_limit IS NOT NULL
            OR rate_limit IS NOT NULL
            OR key_concurrency IS NOT NULL
            OR key_rate_limit IS NOT NULL
        LIMIT :param_4
        OFFSET :param_5
    ) IS NOT NULL AS limits;

-- entry
WITH
    ended AS MATERIALIZED (/* ends.ended-1 */),
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS id,
            json_extract(given_rows.value, '$[1]') AS available_at,
            json_extract(given_rows.value, '$[2]') AS delay_seconds
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
    ended.id,
    ended.queue,
    ended.priority,
    ended.partition_key,
    ended.position,
    ended.topic,
    ended.expires_at,
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
FROM ended
JOIN given ON ended.id = given.id
WHERE ended.status = 'Ready';

-- event
WITH
    ended AS MATERIALIZED (
        SELECT
            ended_rows."key" AS ordinal,
            json_extract(ended_rows.value, '$[0]') AS id,
            json_extract(ended_rows.value, '$[1]') AS pipeline_execution_id,
            json_extract(ended_rows.value, '$[2]') AS status,
            json_extract(ended_rows.value, '$[3]') AS attempt
        FROM json_each(:ended) AS ended_rows
    ),
    given AS MATERIALIZED (/* ends.given-2 */)
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
    ended.pipeline_execution_id,
    ended.id,
    CASE WHEN (ended.status != given.status) THEN 'task_cancelled' ELSE given.event_type END AS anon_1,
    CASE
        WHEN (given.status = 'Completed') THEN given.data
        ELSE json_patch(
            coalesce(given.data, '{}'),
            json_object(
                'attempt',
                ended.attempt,
                'available_at',
                CASE
                    WHEN (ended.status = 'Ready') THEN coalesce(
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
                    )
                END,
                'retry_at',
                CASE
                    WHEN (ended.status = 'Ready' AND given.event_type = 'task_retry_scheduled') THEN coalesce(
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
                    )
                END
            )
        )
    END AS anon_2,
    :worker_id AS anon_3,
    given.lease_token,
    :now AS anon_4
FROM ended
JOIN given ON ended.id = given.id;

-- letter
WITH
    ended AS MATERIALIZED (
        SELECT
            ended_rows."key" AS ordinal,
            json_extract(ended_rows.value, '$[0]') AS id,
            json_extract(ended_rows.value, '$[1]') AS task_name,
            json_extract(ended_rows.value, '$[2]') AS queue,
            json_extract(ended_rows.value, '$[3]') AS partition_key,
            json_extract(ended_rows.value, '$[4]') AS topic,
            json_extract(ended_rows.value, '$[5]') AS status
        FROM json_each(:ended) AS ended_rows
    ),
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS id,
            json_extract(given_rows.value, '$[1]') AS data
        FROM json_each(:given) AS given_rows
    )
INSERT INTO dead_letters (task_execution_id, queue, task_name, topic, partition_key, exception, failed_at)
SELECT
    ended.id,
    ended.queue,
    ended.task_name,
    ended.topic,
    ended.partition_key,
    json_extract(given.data, '$.exception') AS json_extract_1,
    :now AS anon_1
FROM ended
JOIN given ON ended.id = given.id
WHERE ended.status = 'Failed'
ON CONFLICT DO NOTHING;

-- key_held
WITH ended AS MATERIALIZED (
    SELECT
        ended_rows."key" AS ordinal,
        json_extract(ended_rows.value, '$[0]') AS id,
        json_extract(ended_rows.value, '$[1]') AS partition_key,
        json_extract(ended_rows.value, '$[2]') AS on_dead_letter,
        json_extract(ended_rows.value, '$[3]') AS status
    FROM json_each(:ended) AS ended_rows
)
UPDATE partition_claims
SET held=1
WHERE partition_claims.task_execution_id IN (
    SELECT holding.id
    FROM (
        SELECT ended.id AS id
        FROM ended
        WHERE ended.partition_key IS NOT NULL AND ended.status = 'Failed' AND ended.on_dead_letter = 'hold'
    ) AS holding
);

-- key_freed
WITH ended AS MATERIALIZED (
    SELECT
        ended_rows."key" AS ordinal,
        json_extract(ended_rows.value, '$[0]') AS id,
        json_extract(ended_rows.value, '$[1]') AS partition_key,
        json_extract(ended_rows.value, '$[2]') AS on_dead_letter,
        json_extract(ended_rows.value, '$[3]') AS status
    FROM json_each(:ended) AS ended_rows
)
DELETE FROM partition_claims
WHERE partition_claims.task_execution_id IN (
    SELECT freeing.id
    FROM (
        SELECT ended.id AS id
        FROM ended
        WHERE
            ended.partition_key IS NOT NULL
            AND NOT (ended.status = 'Failed' AND ended.on_dead_letter = 'hold')
    ) AS freeing
)
