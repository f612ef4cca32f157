WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    expired AS MATERIALIZED (
        SELECT task_leases.task_execution_id AS id
        FROM task_leases
        WHERE task_leases.lease_expires_at < (SELECT clock.now FROM clock)
        ORDER BY task_leases.lease_expires_at
        LIMIT %(limit)s::BIGINT
        FOR UPDATE SKIP LOCKED
    ),
    unlocked AS MATERIALIZED (
        SELECT task_executions.id AS id
        FROM task_executions
        WHERE task_executions.id = any(array((SELECT expired.id FROM expired)))
        ORDER BY task_executions.id
        FOR UPDATE SKIP LOCKED
    ),
    freed AS (
        DELETE FROM task_leases
        WHERE
            task_leases.task_execution_id = any(array((SELECT expired.id FROM expired)))
            AND (
                task_leases.task_execution_id = any(array((SELECT unlocked.id FROM unlocked)))
                    OR NOT (
                        EXISTS (
                            SELECT execution.id
                            FROM task_executions AS execution
                            WHERE execution.id = task_leases.task_execution_id
                        )
                    )
            )
        RETURNING
            task_leases.task_execution_id AS id,
            task_leases.lease_token,
            task_leases.worker_id,
            task_leases.lease_expires_at,
            task_leases.begun
    ),
    recovered AS (
        UPDATE task_executions
        SET
            status=CASE
                WHEN (task_executions.cancel_requested_at IS NOT NULL) THEN 'Cancelled'
                WHEN (
                    freed.begun IS NOT false
                        AND task_executions.recovery_attempts >= %(max_recoveries)s::INTEGER
                ) THEN 'Failed'
                ELSE 'Ready'
            END,
            recovery_attempts=(
                task_executions.recovery_attempts + CASE
                    WHEN (
                        freed.begun IS NOT false
                            AND NOT (
                                task_executions.cancel_requested_at IS NOT NULL
                                    OR freed.begun IS NOT false
                                    AND task_executions.recovery_attempts >= %(max_recoveries)s::INTEGER
                            )
                    ) THEN %(param_1)s::INTEGER
                    ELSE %(param_2)s::INTEGER
                END
            ),
            worker_id=NULL,
            started_at=CASE
                WHEN (
                    task_executions.cancel_requested_at IS NOT NULL
                        OR freed.begun IS NOT false
                        AND task_executions.recovery_attempts >= %(max_recoveries)s::INTEGER
                ) THEN task_executions.started_at
                ELSE NULL
            END,
            completed_at=CASE
                WHEN (
                    task_executions.cancel_requested_at IS NOT NULL
                        OR freed.begun IS NOT false
                        AND task_executions.recovery_attempts >= %(max_recoveries)s::INTEGER
                ) THEN (SELECT clock.now FROM clock)
                ELSE NULL
            END,
            updated_at=(SELECT clock.now FROM clock),
            last_error=CASE
                WHEN (task_executions.cancel_requested_at IS NOT NULL) THEN task_executions.last_error
                WHEN (
                    freed.begun IS NOT false
                        AND task_executions.recovery_attempts >= %(max_recoveries)s::INTEGER
                ) THEN %(abandonment)s::VARCHAR
                ELSE task_executions.last_error
            END
        FROM freed
        WHERE
            task_executions.id = any(array((SELECT freed.id FROM freed)))
            AND task_executions.id = freed.id
            AND task_executions.lease_token = freed.lease_token
            AND task_executions.worker_id = freed.worker_id
            AND task_executions.status = 'Running'
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
            task_executions.recovery_attempts,
            task_executions.last_error
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
            recovered.id AS id,
            recovered.queue AS queue,
            recovered.priority AS priority,
            recovered.partition_key AS partition_key,
            recovered.position AS position,
            recovered.topic AS topic,
            recovered.expires_at AS expires_at,
            CAST((SELECT clock.now FROM clock) AS TIMESTAMP WITH TIME ZONE) AS anon_1,
            (SELECT clock.now FROM clock) AS anon_2
        FROM recovered
        WHERE recovered.status = 'Ready'
        ON CONFLICT DO NOTHING
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
            recovered.pipeline_execution_id AS pipeline_execution_id,
            recovered.id AS id,
            CASE
                WHEN (recovered.status = 'Ready') THEN 'task_reset'
                WHEN (recovered.status = 'Failed') THEN 'task_abandoned'
                ELSE 'task_cancelled'
            END AS anon_3,
            CAST(
                jsonb_strip_nulls(
                    jsonb_build_object(
                        'recovery_attempts',
                        recovered.recovery_attempts,
                        'lease_expires_at',
                        CASE
                            WHEN (freed.lease_expires_at < (SELECT clock.now FROM clock)) THEN freed.lease_expires_at
                            ELSE (SELECT clock.now FROM clock)
                        END,
                        'available_at',
                        CASE
                            WHEN (recovered.status = 'Ready') THEN (SELECT clock.now FROM clock)
                        END,
                        'error',
                        CASE WHEN (recovered.status = 'Failed') THEN recovered.last_error END,
                        'reason',
                        %(reason)s::VARCHAR
                    )
                ) AS TEXT
            ) AS jsonb_strip_nulls_1,
            freed.worker_id AS worker_id,
            freed.lease_token AS lease_token,
            (SELECT clock.now FROM clock) AS anon_4
        FROM recovered
        JOIN freed ON recovered.id = freed.id
    ),
    letter AS (
        INSERT INTO dead_letters (
            task_execution_id,
            queue,
            task_name,
            topic,
            partition_key,
            exception,
            failed_at
        )
        SELECT
            recovered.id AS id,
            recovered.queue AS queue,
            recovered.task_name AS task_name,
            recovered.topic AS topic,
            recovered.partition_key AS partition_key,
            NULL AS anon_5,
            (SELECT clock.now FROM clock) AS anon_6
        FROM recovered
        WHERE recovered.status = 'Failed'
        ON CONFLICT DO NOTHING
    ),
    key_held AS (
        UPDATE partition_claims
        SET held=true
        WHERE partition_claims.task_execution_id = any(
            array(
                (
                    SELECT holding.id
                    FROM (
                        SELECT recovered.id AS id
                        FROM recovered
                        WHERE
                            recovered.partition_key IS NOT NULL
                            AND recovered.status = 'Failed'
                            AND recovered.on_dead_letter = 'hold'
                    ) AS holding
                )
            )
        )
    ),
    key_freed AS (
        DELETE FROM partition_claims
        WHERE partition_claims.task_execution_id = any(
            array(
                (
                    SELECT freeing.id
                    FROM (
                        SELECT recovered.id AS id
                        FROM recovered
                        WHERE
                            recovered.partition_key IS NOT NULL
                            AND NOT (recovered.status = 'Failed' AND recovered.on_dead_letter = 'hold')
                    ) AS freeing
                )
            )
        )
    )
SELECT
    recovered.id,
    recovered.pipeline_execution_id,
    recovered.task_name,
    recovered.queue,
    recovered.priority,
    recovered.partition_key,
    recovered.position,
    recovered.topic,
    recovered.expires_at,
    recovered.on_dead_letter,
    recovered.status,
    recovered.attempt,
    recovered.recovery_attempts,
    recovered.last_error
FROM recovered
