WITH
    given AS (
        SELECT batch.id AS id, batch.ordinal AS ordinal
        FROM unnest(%(given_id)s::UUID[]) WITH ORDINALITY AS batch(id, ordinal)
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    gone AS (
        DELETE FROM task_outbox
        WHERE
            task_outbox.task_execution_id = any(array((SELECT given.id FROM given)))
            AND %(due_now)s
            AND task_outbox.available_at > (SELECT clock.now FROM clock)
        RETURNING task_outbox.task_execution_id AS id, task_outbox.available_at
    ),
    moved AS (
        UPDATE task_executions
        SET
            priority=coalesce(%(priority)s::SMALLINT, task_executions.priority),
            retry_at=CASE WHEN %(due_now)s THEN NULL ELSE task_executions.retry_at END,
            updated_at=(SELECT clock.now FROM clock)
        WHERE
            task_executions.id = any(array((SELECT gone.id FROM gone)))
            AND task_executions.status = 'Ready'
        RETURNING
            task_executions.id,
            task_executions.pipeline_execution_id,
            task_executions.task_name,
            task_executions.queue,
            task_executions.priority,
            task_executions.partition_key,
            task_executions.position,
            task_executions.topic,
            task_executions.expires_at,
            task_executions.on_dead_letter,
            task_executions.status
    ),
    entry AS (
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
            moved.id AS id,
            moved.queue AS queue,
            moved.priority AS priority,
            moved.partition_key AS partition_key,
            moved.position AS position,
            moved.topic AS topic,
            moved.expires_at AS expires_at,
            CAST(
                CASE
                    WHEN %(due_now)s THEN (SELECT clock.now FROM clock)
                    ELSE gone.available_at
                END AS TIMESTAMP WITH TIME ZONE
            ) AS anon_1,
            (SELECT clock.now FROM clock) AS anon_2
        FROM moved
        JOIN gone ON moved.id = gone.id
        WHERE moved.status = 'Ready'
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
            moved.pipeline_execution_id AS pipeline_execution_id,
            moved.id AS id,
            'task_rescheduled',
            CAST(
                jsonb_strip_nulls(
                    jsonb_build_object(
                        'available_at',
                        CASE
                            WHEN %(due_now)s THEN (SELECT clock.now FROM clock)
                            ELSE gone.available_at
                        END,
                        'priority',
                        %(priority)s::SMALLINT,
                        'request',
                        %(request)s::VARCHAR,
                        'reason',
                        %(reason)s::VARCHAR
                    )
                ) AS TEXT
            ) AS jsonb_strip_nulls_1,
            NULL AS anon_3,
            NULL AS anon__1,
            (SELECT clock.now FROM clock) AS anon_4
        FROM moved
        JOIN gone ON moved.id = gone.id
    )
SELECT
    moved.id,
    moved.pipeline_execution_id,
    moved.task_name,
    moved.queue,
    moved.priority,
    moved.partition_key,
    moved.position,
    moved.topic,
    moved.expires_at,
    moved.on_dead_letter,
    moved.status
FROM moved
