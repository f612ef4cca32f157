WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    held AS MATERIALIZED (
        SELECT
            task_leases.task_execution_id AS id,
            task_leases.lease_token AS lease_token,
            CASE
                WHEN (CAST(%(delay_seconds)s AS DOUBLE PRECISION) IS NOT NULL) THEN (
                    SELECT clock.now FROM clock
                ) + CAST(%(delay_seconds)s AS DOUBLE PRECISION) * interval '1 second'
            END AS due_at
        FROM task_leases
        WHERE
            task_leases.task_execution_id = %(task_id)s::UUID
            AND task_leases.lease_token = %(lease_token)s::BIGINT
            AND task_leases.worker_id = %(worker_id)s::UUID
        FOR SHARE OF task_leases
    ),
    step AS (
        INSERT INTO task_steps (task_execution_id, name, number, lease_token, result, due_at, created_at)
        SELECT
            held.id AS id,
            %(name)s::VARCHAR AS anon_1,
            %(number)s::INTEGER AS anon_2,
            held.lease_token AS lease_token,
            %(result)s::VARCHAR AS anon_3,
            held.due_at AS due_at,
            (SELECT clock.now FROM clock) AS anon_4
        FROM held
        WHERE held.id IS NOT NULL
        ON CONFLICT DO NOTHING
        RETURNING task_steps.task_execution_id AS id, task_steps.number, task_steps.due_at
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
            %(pipeline_id)s::UUID AS anon_5,
            step.id AS id,
            'step_completed',
            CAST(
                jsonb_strip_nulls(
                    jsonb_build_object(
                        'step',
                        %(name)s::VARCHAR,
                        'number',
                        step.number,
                        'ms',
                        %(ms)s::INTEGER,
                        'due_at',
                        step.due_at
                    )
                ) AS TEXT
            ) AS jsonb_strip_nulls_1,
            %(worker_id)s::UUID AS anon_6,
            NULL AS anon_7,
            (SELECT clock.now FROM clock) AS anon_8
        FROM step
    )
SELECT step.id, step.number, step.due_at
FROM step
