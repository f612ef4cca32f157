WITH
    given AS (
        SELECT
            batch.id AS id,
            batch.event_type AS event_type,
            batch.status AS status,
            batch.attempt AS attempt,
            batch.available_at AS available_at,
            batch.data AS data,
            batch.ordinal AS ordinal
        FROM unnest(
            %(given_id)s::UUID[],
            %(given_event_type)s::TEXT[],
            %(given_status)s::TEXT[],
            %(given_attempt)s::INTEGER[],
            %(given_available_at)s::TIMESTAMP WITH TIME ZONE[],
            %(given_data)s::TEXT[]
        ) WITH ORDINALITY AS batch(id, event_type, status, attempt, available_at, data, ordinal)
    ),
    gone AS (
        DELETE FROM task_outbox
        WHERE
            %(from_ready)s
            AND task_outbox.task_execution_id = any(array((SELECT given.id FROM given)))
        RETURNING task_outbox.task_execution_id AS id
    ),
    freed AS (
        DELETE FROM task_leases
        WHERE
            %(from_running)s
            AND task_leases.task_execution_id = any(array((SELECT given.id FROM given)))
        RETURNING task_leases.task_execution_id AS id, task_leases.lease_token, task_leases.worker_id
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    moved AS (
        UPDATE task_executions
        SET
            status=given.status,
            attempt=coalesce(given.attempt, task_executions.attempt),
            recovery_attempts=CASE
                WHEN (given.event_type = 'task_requeued') THEN %(param_1)s::INTEGER
                ELSE task_executions.recovery_attempts
            END,
            worker_id=NULL,
            cancel_requested_at=NULL,
            retry_at=CASE
                WHEN (given.event_type = 'task_retry_scheduled') THEN given.available_at
                ELSE NULL
            END,
            started_at=CASE WHEN (given.status = 'Ready') THEN NULL ELSE task_executions.started_at END,
            completed_at=CASE
                WHEN (given.status = 'Ready') THEN NULL
                ELSE (SELECT clock.now FROM clock)
            END,
            updated_at=(SELECT clock.now FROM clock)
        FROM given
        WHERE
            task_executions.id = any(array((SELECT given.id FROM given)))
            AND task_executions.id = given.id
            AND (
                task_executions.status = 'Ready'
                    AND task_executions.id = any(array((SELECT gone.id FROM gone)))
                    OR task_executions.status = 'Running'
                    AND task_executions.id = any(array((SELECT freed.id FROM freed)))
                    OR task_executions.status = 'Failed'
                    AND %(from_failed)s
            )
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
                coalesce(given.available_at, (SELECT clock.now FROM clock)) AS TIMESTAMP WITH TIME ZONE
            ) AS coalesce_1,
            (SELECT clock.now FROM clock) AS anon_1
        FROM moved
        JOIN given ON moved.id = given.id
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
            given.event_type AS event_type,
            CAST(
                coalesce(CAST(given.data AS JSONB), '{}') || jsonb_strip_nulls(
                    jsonb_build_object(
                        'attempt',
                        moved.attempt,
                        'recovery_attempts',
                        moved.recovery_attempts,
                        'available_at',
                        CASE
                            WHEN (given.status = 'Ready') THEN coalesce(
                                given.available_at,
                                (SELECT clock.now FROM clock)
                            )
                        END,
                        'retry_at',
                        CASE
                            WHEN (given.event_type = 'task_retry_scheduled') THEN coalesce(
                                given.available_at,
                                (SELECT clock.now FROM clock)
                            )
                        END
                    )
                ) AS TEXT
            ) AS anon_2,
            freed.worker_id AS worker_id,
            freed.lease_token AS lease_token,
            (SELECT clock.now FROM clock) AS anon_3
        FROM moved
        JOIN given ON moved.id = given.id
        LEFT OUTER JOIN freed ON moved.id = freed.id
    ),
    letter_gone AS (
        DELETE FROM dead_letters
        WHERE dead_letters.task_execution_id = any(array((SELECT moved.id FROM moved)))
    ),
    key_freed AS (
        DELETE FROM partition_claims
        WHERE partition_claims.task_execution_id = any(
            array(
                (
                    SELECT freeing.id
                    FROM (
                        SELECT moved.id AS id
                        FROM moved
                        WHERE
                            moved.partition_key IS NOT NULL
                            AND NOT (moved.status = 'Failed' AND moved.on_dead_letter = 'hold')
                    ) AS freeing
                )
            )
        )
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
    freed.lease_token,
    freed.worker_id
FROM moved
LEFT OUTER JOIN freed ON freed.id = moved.id
