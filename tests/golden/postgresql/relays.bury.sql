WITH
    given AS (
        SELECT batch.id AS id, batch.error AS error, batch.ordinal AS ordinal
        FROM unnest(%(given_id)s::UUID[], %(given_error)s::TEXT[]) WITH ORDINALITY AS batch(
            id,
            error,
            ordinal
        )
    ),
    gone AS (
        DELETE FROM task_outbox
        WHERE task_outbox.task_execution_id = any(array((SELECT given.id FROM given)))
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    failed AS (
        UPDATE task_executions
        SET
            status='Failed',
            completed_at=(SELECT clock.now FROM clock),
            updated_at=(SELECT clock.now FROM clock),
            last_error=given.error
        FROM given
        WHERE task_executions.id = given.id
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
            task_executions.last_error
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
            failed.pipeline_execution_id AS pipeline_execution_id,
            failed.id AS id,
            'task_failed',
            CAST(
                jsonb_strip_nulls(
                    jsonb_build_object('error', failed.last_error, 'exception', 'outboxq.errors.EventRefused')
                ) AS TEXT
            ) AS jsonb_strip_nulls_1,
            NULL AS anon_1,
            NULL AS anon__1,
            (SELECT clock.now FROM clock) AS anon_2
        FROM failed
    ),
    dead_letter AS (
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
            failed.id AS id,
            failed.queue AS queue,
            failed.task_name AS task_name,
            failed.topic AS topic,
            failed.partition_key AS partition_key,
            'outboxq.errors.EventRefused',
            (SELECT clock.now FROM clock) AS anon_3
        FROM failed
        WHERE failed.status = 'Failed'
        ON CONFLICT DO NOTHING
    )
INSERT INTO partition_claims (queue, partition_key, task_execution_id, held)
SELECT failed.queue, failed.partition_key, failed.id, true AS anon_4
FROM failed
WHERE failed.partition_key IS NOT NULL AND failed.on_dead_letter = 'hold'
ON CONFLICT DO NOTHING
