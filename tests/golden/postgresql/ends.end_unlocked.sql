WITH
    given AS (/* ends.given-1 */),
    held AS MATERIALIZED (
        SELECT task_leases.task_execution_id AS id
        FROM task_leases
        JOIN given ON task_leases.task_execution_id = given.id
        WHERE
            task_leases.task_execution_id = any(array((SELECT given.id FROM given)))
            AND task_leases.lease_token = given.lease_token
            AND task_leases.worker_id = %(worker_id)s::UUID
        ORDER BY task_leases.task_execution_id
        FOR UPDATE OF task_leases SKIP LOCKED
    ),
    unlocked AS MATERIALIZED (
        SELECT task_executions.id AS id
        FROM task_executions
        WHERE task_executions.id = any(array((SELECT held.id FROM held)))
        ORDER BY task_executions.id
        FOR UPDATE SKIP LOCKED
    ),
    freed AS (
        DELETE FROM task_leases
        WHERE
            task_leases.task_execution_id = any(array((SELECT unlocked.id FROM unlocked)))
            AND task_leases.worker_id = %(worker_id)s::UUID
            AND (
                (task_leases.task_execution_id, task_leases.lease_token) IN (
                    SELECT given.id, given.lease_token FROM given
                )
            ) IS true
        RETURNING task_leases.task_execution_id AS id
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    ended AS (
        UPDATE task_executions
        SET
            status=CASE
                WHEN (given.status = 'Ready' AND task_executions.cancel_requested_at IS NULL) THEN given.status
                WHEN (given.status = 'Ready') THEN 'Cancelled'
                ELSE given.status
            END,
            attempt=(
                task_executions.attempt + CASE
                    WHEN (
                        given.event_type = 'task_retry_scheduled'
                            AND task_executions.cancel_requested_at IS NULL
                    ) THEN %(param_1)s::INTEGER
                    ELSE %(param_2)s::INTEGER
                END
            ),
            recovery_attempts=CASE
                WHEN (given.event_type = 'task_released') THEN task_executions.recovery_attempts
                ELSE 0
            END,
            worker_id=NULL,
            retry_at=CASE
                WHEN (
                    given.event_type = 'task_retry_scheduled' AND task_executions.cancel_requested_at IS NULL
                ) THEN coalesce(
                    given.available_at,
                    (SELECT clock.now FROM clock) + given.delay_seconds * interval '1 second'
                )
                ELSE NULL
            END,
            started_at=CASE
                WHEN (given.status = 'Ready' AND task_executions.cancel_requested_at IS NULL) THEN NULL
                ELSE task_executions.started_at
            END,
            completed_at=CASE
                WHEN (given.status = 'Ready' AND task_executions.cancel_requested_at IS NULL) THEN NULL
                ELSE (SELECT clock.now FROM clock)
            END,
            updated_at=(SELECT clock.now FROM clock),
            last_error=coalesce(given.error, task_executions.last_error),
            result=given.result
        FROM given
        WHERE
            task_executions.id = any(array((SELECT freed.id FROM freed)))
            AND task_executions.id = given.id
            AND task_executions.lease_token = given.lease_token
            AND task_executions.worker_id = %(worker_id)s::UUID
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
            (
                SELECT mine.queue
                FROM queue_settings AS mine
                WHERE
                    mine.concurrency_limit IS NOT NULL
                    OR mine.rate_limit IS NOT NULL
                    OR mine.key_concurrency IS NOT NULL
                    OR mine.key_rate_limit IS NOT NULL
                LIMIT %(param_3)s::INTEGER
            ) IS NOT NULL AS limits
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
            ended.id AS id,
            ended.queue AS queue,
            ended.priority AS priority,
            ended.partition_key AS partition_key,
            ended.position AS position,
            ended.topic AS topic,
            ended.expires_at AS expires_at,
            CAST(
                coalesce(
                    given.available_at,
                    (SELECT clock.now FROM clock) + given.delay_seconds * interval '1 second'
                ) AS TIMESTAMP WITH TIME ZONE
            ) AS coalesce_1,
            (SELECT clock.now FROM clock) AS anon_1
        FROM ended
        JOIN given ON ended.id = given.id
        WHERE ended.status = 'Ready'
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
            ended.pipeline_execution_id AS pipeline_execution_id,
            ended.id AS id,
            CASE
                WHEN (ended.status != given.status) THEN 'task_cancelled'
                ELSE given.event_type
            END AS anon_2,
            CASE
                WHEN (given.status = 'Completed') THEN given.data
                ELSE CAST(
                    coalesce(CAST(given.data AS JSONB), '{}') || jsonb_strip_nulls(
                        jsonb_build_object(
                            'attempt',
                            ended.attempt,
                            'available_at',
                            CASE
                                WHEN (ended.status = 'Ready') THEN coalesce(
                                    given.available_at,
                                    (SELECT clock.now FROM clock) + given.delay_seconds * interval '1 second'
                                )
                            END,
                            'retry_at',
                            CASE
                                WHEN (ended.status = 'Ready' AND given.event_type = 'task_retry_scheduled') THEN coalesce(
                                    given.available_at,
                                    (SELECT clock.now FROM clock) + given.delay_seconds * interval '1 second'
                                )
                            END
                        )
                    ) AS TEXT
                )
            END AS anon_3,
            %(worker_id)s::UUID AS anon_4,
            given.lease_token AS lease_token,
            (SELECT clock.now FROM clock) AS anon_5
        FROM ended
        JOIN given ON ended.id = given.id
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
            ended.id AS id,
            ended.queue AS queue,
            ended.task_name AS task_name,
            ended.topic AS topic,
            ended.partition_key AS partition_key,
            CAST(given.data AS JSONB) ->> 'exception' AS anon_6,
            (SELECT clock.now FROM clock) AS anon_7
        FROM ended
        JOIN given ON ended.id = given.id
        WHERE ended.status = 'Failed'
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
                        SELECT ended.id AS id
                        FROM ended
                        WHERE
                            ended.partition_key IS NOT NULL
                            AND ended.status = 'Failed'
                            AND ended.on_dead_letter = 'hold'
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
                        SELECT ended.id AS id
                        FROM ended
                        WHERE
                            ended.partition_key IS NOT NULL
                            AND NOT (ended.status = 'Failed' AND ended.on_dead_letter = 'hold')
                    ) AS freeing
                )
            )
        )
    )
SELECT ended.id, ended.queue, ended.partition_key, ended.limits
FROM ended
