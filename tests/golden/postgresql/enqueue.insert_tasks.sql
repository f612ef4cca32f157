WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    given AS (
        SELECT
            batch.id AS id,
            batch.pipeline_execution_id AS pipeline_execution_id,
            batch.task_name AS task_name,
            batch.queue AS queue,
            batch.priority AS priority,
            batch.args AS args,
            batch.headers AS headers,
            batch.max_attempts AS max_attempts,
            batch.lease_seconds AS lease_seconds,
            batch.timeout_seconds AS timeout_seconds,
            batch.available_at AS available_at,
            batch.delay_seconds AS delay_seconds,
            batch.partition_key AS partition_key,
            batch.on_dead_letter AS on_dead_letter,
            batch.topic AS topic,
            batch.expires_at AS expires_at,
            batch.expires_seconds AS expires_seconds,
            batch.ordinal AS ordinal
        FROM unnest(
            %(given_id)s::UUID[],
            %(given_pipeline_execution_id)s::UUID[],
            %(given_task_name)s::TEXT[],
            %(given_queue)s::TEXT[],
            %(given_priority)s::SMALLINT[],
            %(given_args)s::TEXT[],
            %(given_headers)s::TEXT[],
            %(given_max_attempts)s::INTEGER[],
            %(given_lease_seconds)s::DOUBLE PRECISION[],
            %(given_timeout_seconds)s::DOUBLE PRECISION[],
            %(given_available_at)s::TIMESTAMP WITH TIME ZONE[],
            %(given_delay_seconds)s::DOUBLE PRECISION[],
            %(given_partition_key)s::TEXT[],
            %(given_on_dead_letter)s::TEXT[],
            %(given_topic)s::TEXT[],
            %(given_expires_at)s::TIMESTAMP WITH TIME ZONE[],
            %(given_expires_seconds)s::DOUBLE PRECISION[]
        ) WITH ORDINALITY AS batch(
            id,
            pipeline_execution_id,
            task_name,
            queue,
            priority,
            args,
            headers,
            max_attempts,
            lease_seconds,
            timeout_seconds,
            available_at,
            delay_seconds,
            partition_key,
            on_dead_letter,
            topic,
            expires_at,
            expires_seconds,
            ordinal
        )
    ),
    entry AS (
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
            given.id AS id,
            given.queue AS queue,
            given.priority AS priority,
            given.partition_key AS partition_key,
            nextval('task_position') AS next_value_1,
            given.topic AS topic,
            coalesce(
                given.available_at,
                (SELECT clock.now FROM clock) + given.delay_seconds * interval '1 second'
            ) AS coalesce_1,
            coalesce(
                given.expires_at,
                (SELECT clock.now FROM clock) + given.expires_seconds * interval '1 second'
            ) AS coalesce_2,
            (SELECT clock.now FROM clock) AS anon_1
        FROM given
        RETURNING
            task_outbox.task_execution_id AS id,
            task_outbox.position,
            task_outbox.available_at,
            task_outbox.expires_at,
            CASE WHEN (task_outbox.partition_key >= '') THEN task_outbox.position END AS place
    ),
    execution AS (
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
            given.id AS id,
            given.pipeline_execution_id AS pipeline_execution_id,
            given.task_name AS task_name,
            given.queue AS queue,
            given.topic AS topic,
            given.partition_key AS partition_key,
            entry.position AS position,
            given.priority AS priority,
            given.args AS args,
            given.headers AS headers,
            'Ready',
            1,
            given.max_attempts AS max_attempts,
            0,
            given.lease_seconds AS lease_seconds,
            given.timeout_seconds AS timeout_seconds,
            0,
            given.on_dead_letter AS on_dead_letter,
            entry.expires_at AS expires_at,
            (SELECT clock.now FROM clock) AS anon_2,
            (SELECT clock.now FROM clock) AS anon_3
        FROM given
        JOIN entry ON entry.id = given.id
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
        WHEN (entry.place IS NULL) THEN '{"available_at": ' || CAST(to_json(entry.available_at) AS TEXT) || '}'
        ELSE CAST(
            jsonb_strip_nulls(jsonb_build_object('available_at', entry.available_at, 'position', entry.place)) AS TEXT
        )
    END AS anon_4,
    NULL AS anon_5,
    NULL AS anon__1,
    (SELECT clock.now FROM clock) AS anon_6
FROM given
JOIN entry ON entry.id = given.id
