WITH
    subscriber AS MATERIALIZED (/* fanout.subscriber-1 */),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
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
            subscriber.id AS id,
            subscriber.queue AS queue,
            subscriber.priority AS priority,
            %(partition_key)s::VARCHAR AS anon_1,
            nextval('task_position') AS next_value_1,
            %(topic)s::VARCHAR AS anon_2,
            coalesce(
                %(available_at)s::TIMESTAMP WITH TIME ZONE,
                (SELECT clock.now FROM clock) + %(delay_seconds)s * interval '1 second'
            ) AS coalesce_1,
            coalesce(
                %(expires_at)s::TIMESTAMP WITH TIME ZONE,
                (SELECT clock.now FROM clock) + %(expires_seconds)s * interval '1 second'
            ) AS coalesce_2,
            (SELECT clock.now FROM clock) AS anon_3
        FROM subscriber
        WHERE
            subscriber.parameter IS NOT NULL
            AND (SELECT count(subscriber.id) AS count_1 FROM subscriber) <= %(most_subscribers)s::INTEGER
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
            subscriber.id AS id,
            subscriber.pipeline_execution_id AS pipeline_execution_id,
            subscriber.task_name AS task_name,
            subscriber.queue AS queue,
            %(topic)s::VARCHAR AS anon_2,
            %(partition_key)s::VARCHAR AS anon_1,
            entry.position AS position,
            subscriber.priority AS priority,
            '{"' || subscriber.parameter || '":' || %(payload)s::VARCHAR || '}' AS anon_4,
            %(headers)s::VARCHAR AS anon_5,
            'Ready',
            1,
            subscriber.max_attempts AS max_attempts,
            0,
            subscriber.lease_seconds AS lease_seconds,
            subscriber.timeout_seconds AS timeout_seconds,
            0,
            CASE WHEN %(may_hold)s THEN subscriber.on_dead_letter ELSE 'release' END AS anon_6,
            entry.expires_at AS expires_at,
            (SELECT clock.now FROM clock) AS anon_7,
            (SELECT clock.now FROM clock) AS anon_8
        FROM subscriber
        JOIN entry ON entry.id = subscriber.id
    ),
    event AS (
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
            subscriber.pipeline_execution_id AS pipeline_execution_id,
            subscriber.id AS id,
            'task_created',
            CASE
                WHEN (entry.place IS NULL) THEN '{"available_at": ' || CAST(
                    to_json(entry.available_at) AS TEXT
                ) || '}'
                ELSE CAST(
                    jsonb_strip_nulls(
                        jsonb_build_object('available_at', entry.available_at, 'position', entry.place)
                    ) AS TEXT
                )
            END AS anon_9,
            NULL AS anon_10,
            NULL AS anon__1,
            (SELECT clock.now FROM clock) AS anon_11
        FROM subscriber
        JOIN entry ON entry.id = subscriber.id
    ),
    assigned AS MATERIALIZED (SELECT pg_current_xact_id() AS xact_id),
    unrouted AS (
        INSERT INTO execution_events (pipeline_execution_id, event_type, event_data, created_at)
        SELECT
            %(pipeline_execution_id)s::UUID AS anon_12,
            'event_unrouted',
            '{"topic":' || %(quoted_topic)s::VARCHAR || ',"payload":' || %(payload)s::VARCHAR || '}' AS anon_13,
            (SELECT clock.now FROM clock) AS anon_14
        FROM assigned
        WHERE
            NOT (EXISTS (SELECT subscriber.id FROM subscriber))
            AND assigned.xact_id IS NOT NULL
    )
SELECT
    subscriber.id,
    subscriber.pipeline_execution_id,
    subscriber.task_name,
    subscriber.queue,
    subscriber.priority,
    subscriber.max_attempts,
    subscriber.lease_seconds,
    subscriber.timeout_seconds,
    subscriber.on_dead_letter,
    subscriber.parameter,
    entry.position
FROM subscriber
LEFT OUTER JOIN entry ON entry.id = subscriber.id
