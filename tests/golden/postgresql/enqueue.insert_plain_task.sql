WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    entry AS (
        INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at)
        SELECT
            %(id)s::UUID AS anon_1,
            %(queue)s::VARCHAR AS anon_2,
            %(priority)s::SMALLINT AS anon_3,
            nextval('task_position') AS next_value_1,
            coalesce(
                %(available_at)s::TIMESTAMP WITH TIME ZONE,
                (SELECT clock.now FROM clock) + %(delay_seconds)s * interval '1 second'
            ) AS coalesce_1,
            (SELECT clock.now FROM clock) AS anon_4
        RETURNING task_outbox.position, task_outbox.available_at
    ),
    execution AS (
        INSERT INTO task_executions (
            id,
            pipeline_execution_id,
            task_name,
            queue,
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
            %(id)s::UUID AS anon_1,
            %(id)s::UUID AS anon__1,
            %(task_name)s::VARCHAR AS anon_5,
            %(queue)s::VARCHAR AS anon_2,
            entry.position AS position,
            %(priority)s::SMALLINT AS anon_3,
            %(args)s::VARCHAR AS anon_6,
            %(headers)s::VARCHAR AS anon_7,
            'Ready',
            1,
            %(max_attempts)s::INTEGER AS anon_8,
            0,
            %(lease_seconds)s AS anon_9,
            %(timeout_seconds)s AS anon_10,
            0,
            %(on_dead_letter)s::VARCHAR AS anon_11,
            NULL AS anon_12,
            (SELECT clock.now FROM clock) AS anon_13,
            (SELECT clock.now FROM clock) AS anon_14
        FROM entry
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
    %(id)s::UUID AS anon_1,
    %(id)s::UUID AS anon__1,
    'task_created',
    '{"available_at": ' || CAST(to_json(entry.available_at) AS TEXT) || '}' AS anon_15,
    NULL AS anon_12,
    NULL AS anon__2,
    (SELECT clock.now FROM clock) AS anon_16
FROM entry
