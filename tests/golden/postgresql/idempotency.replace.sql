WITH
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
            batch.idempotency_key AS idempotency_key,
            batch.unique_seconds AS unique_seconds,
            batch.until_finished AS until_finished,
            batch.holder AS holder,
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
            %(given_expires_seconds)s::DOUBLE PRECISION[],
            %(given_idempotency_key)s::TEXT[],
            %(given_unique_seconds)s::DOUBLE PRECISION[],
            %(given_until_finished)s::BOOLEAN[],
            %(given_holder)s::UUID[]
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
            idempotency_key,
            unique_seconds,
            until_finished,
            holder,
            ordinal
        )
    ),
    waiting AS MATERIALIZED (
        SELECT task_outbox.task_execution_id AS id
        FROM task_outbox
        WHERE task_outbox.task_execution_id = any(array((SELECT given.holder FROM given)))
        ORDER BY task_outbox.task_execution_id
        FOR UPDATE
    ),
    gone AS (
        DELETE FROM task_outbox
        WHERE task_outbox.task_execution_id = any(array((SELECT waiting.id FROM waiting)))
        RETURNING
            task_outbox.task_execution_id AS id,
            task_outbox.queue AS left_queue,
            task_outbox.partition_key AS left_key
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    replaced AS (
        UPDATE task_executions
        SET
            queue=given.queue,
            topic=given.topic,
            partition_key=given.partition_key,
            priority=given.priority,
            args=given.args,
            headers=given.headers,
            attempt=1,
            max_attempts=given.max_attempts,
            recovery_attempts=0,
            lease_seconds=given.lease_seconds,
            timeout_seconds=given.timeout_seconds,
            on_dead_letter=given.on_dead_letter,
            expires_at=coalesce(
                given.expires_at,
                (SELECT clock.now FROM clock) + given.expires_seconds * interval '1 second'
            ),
            retry_at=NULL,
            updated_at=(SELECT clock.now FROM clock)
        FROM given
        WHERE
            task_executions.id = any(array((SELECT gone.id FROM gone)))
            AND task_executions.id = given.holder
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
            replaced.id AS id,
            replaced.queue AS queue,
            replaced.priority AS priority,
            replaced.partition_key AS partition_key,
            replaced.position AS position,
            replaced.topic AS topic,
            replaced.expires_at AS expires_at,
            CAST(
                coalesce(
                    given.available_at,
                    (SELECT clock.now FROM clock) + given.delay_seconds * interval '1 second'
                ) AS TIMESTAMP WITH TIME ZONE
            ) AS coalesce_1,
            (SELECT clock.now FROM clock) AS anon_1
        FROM replaced
        JOIN given ON replaced.id = given.holder
        WHERE replaced.status = 'Ready'
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
            replaced.pipeline_execution_id AS pipeline_execution_id,
            replaced.id AS id,
            'task_replaced',
            CAST(
                jsonb_strip_nulls(
                    jsonb_build_object(
                        'available_at',
                        coalesce(
                            given.available_at,
                            (SELECT clock.now FROM clock) + given.delay_seconds * interval '1 second'
                        ),
                        'attempt',
                        replaced.attempt,
                        'recovery_attempts',
                        replaced.recovery_attempts,
                        'request',
                        given.id,
                        'position',
                        CASE WHEN (replaced.partition_key IS NOT NULL) THEN replaced.position END
                    )
                ) AS TEXT
            ) AS jsonb_strip_nulls_1,
            NULL AS anon_2,
            NULL AS anon__1,
            (SELECT clock.now FROM clock) AS anon_3
        FROM replaced
        JOIN given ON replaced.id = given.holder
    )
SELECT replaced.id, gone.left_queue, gone.left_key
FROM replaced
LEFT OUTER JOIN gone ON gone.id = replaced.id
