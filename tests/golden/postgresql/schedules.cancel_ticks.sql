WITH
    given AS (
        SELECT batch.entry_id AS entry_id, batch.ordinal AS ordinal
        FROM unnest(%(given_entry_id)s::BIGINT[]) WITH ORDINALITY AS batch(entry_id, ordinal)
    ),
    gone AS (
        DELETE FROM task_outbox
        WHERE task_outbox.id = any(array((SELECT given.entry_id FROM given)))
        RETURNING task_outbox.task_execution_id AS id
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    moved AS (
        UPDATE task_executions
        SET
            status='Cancelled',
            completed_at=(SELECT clock.now FROM clock),
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
            task_executions.status,
            task_executions.attempt,
            task_executions.recovery_attempts
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
            'task_cancelled',
            CAST(
                jsonb_strip_nulls(
                    jsonb_build_object(
                        'attempt',
                        moved.attempt,
                        'recovery_attempts',
                        moved.recovery_attempts,
                        'reason',
                        %(reason)s::VARCHAR
                    )
                ) AS TEXT
            ) AS jsonb_strip_nulls_1,
            NULL AS anon_1,
            NULL AS anon__1,
            (SELECT clock.now FROM clock) AS anon_2
        FROM moved
        JOIN gone ON moved.id = gone.id
    ),
    ticks AS (
        DELETE FROM schedule_ticks
        WHERE schedule_ticks.task_execution_id = any(array((SELECT moved.id FROM moved)))
        RETURNING schedule_ticks.task_execution_id AS id, schedule_ticks.tick
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
    moved.status,
    moved.attempt,
    moved.recovery_attempts,
    ticks.tick
FROM moved
LEFT OUTER JOIN ticks ON ticks.id = moved.id
