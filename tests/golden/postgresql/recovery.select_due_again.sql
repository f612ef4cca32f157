WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    found AS MATERIALIZED (
        SELECT task_outbox.id AS id
        FROM task_outbox
        WHERE
            task_outbox.id > %(after)s::BIGINT
            AND (
                task_outbox.available_at > (SELECT clock.now FROM clock)
                    AND task_outbox.available_at <= %(until)s::TIMESTAMP WITH TIME ZONE
                    AND (
                        task_outbox.created_at > (SELECT clock.now FROM clock)
                            OR task_outbox.created_at < (SELECT clock.now FROM clock) + %(lately)s * interval '1 second'
                    )
                    OR task_outbox.created_at > (SELECT clock.now FROM clock) + 1.0 * interval '1 second'
                    AND task_outbox.available_at > (SELECT clock.now FROM clock)
                    AND (
                        task_outbox.available_at <= task_outbox.created_at
                            OR (
                                EXISTS (
                                    SELECT task_executions.id
                                    FROM task_executions
                                    WHERE
                                        task_executions.id = task_outbox.task_execution_id
                                        AND task_executions.first_started_at IS NOT NULL
                                )
                            )
                    )
            )
        ORDER BY task_outbox.id
        LIMIT %(limit)s::BIGINT
        FOR UPDATE SKIP LOCKED
    ),
    gone AS (
        DELETE FROM task_outbox
        WHERE task_outbox.id = any(array((SELECT found.id FROM found)))
        RETURNING
            task_outbox.task_execution_id AS id,
            task_outbox.id AS entry_id,
            CASE
                WHEN (
                    task_outbox.available_at > %(until)s::TIMESTAMP WITH TIME ZONE
                        AND CASE
                            WHEN (isfinite(task_outbox.created_at) AND isfinite(task_outbox.available_at)) THEN CAST(
                                EXTRACT(epoch FROM task_outbox.available_at - task_outbox.created_at) * %(param_1)s::INTEGER AS BIGINT
                            )
                        END / CAST(1000000.0 AS DOUBLE PRECISION) > %(param_2)s::INTEGER
                ) THEN (SELECT clock.now FROM clock) + (
                    CASE
                        WHEN (isfinite(task_outbox.created_at) AND isfinite(task_outbox.available_at)) THEN CAST(
                            EXTRACT(epoch FROM task_outbox.available_at - task_outbox.created_at) * %(param_1)s::INTEGER AS BIGINT
                        )
                    END / CAST(1000000.0 AS DOUBLE PRECISION)
                ) * interval '1 second'
                ELSE (SELECT clock.now FROM clock)
            END AS due
    ),
    moved AS (
        UPDATE task_executions
        SET
            retry_at=CASE
                WHEN (
                    task_executions.retry_at IS NOT NULL
                        AND gone.due > (SELECT clock.now FROM clock)
                ) THEN gone.due
                ELSE NULL
            END,
            updated_at=(SELECT clock.now FROM clock)
        FROM gone
        WHERE task_executions.id = gone.id AND task_executions.status = 'Ready'
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
            CAST(gone.due AS TIMESTAMP WITH TIME ZONE) AS due,
            (SELECT clock.now FROM clock) AS anon_1
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
                    jsonb_build_object('available_at', gone.due, 'reason', 'the clock was set back')
                ) AS TEXT
            ) AS jsonb_strip_nulls_1,
            NULL AS anon_2,
            NULL AS anon__1,
            (SELECT clock.now FROM clock) AS anon_3
        FROM moved
        JOIN gone ON moved.id = gone.id
    )
SELECT gone.id, gone.entry_id, gone.due
FROM gone
