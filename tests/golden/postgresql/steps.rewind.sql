WITH
    task AS MATERIALIZED (
        SELECT task_executions.id AS id, task_executions.pipeline_execution_id AS pipeline_execution_id
        FROM task_executions
        WHERE task_executions.id = %(task_id)s::UUID
    ),
    gone AS (
        DELETE FROM task_steps
        WHERE
            task_steps.task_execution_id = any(array((SELECT task.id FROM task)))
            AND task_steps.number >= %(number)s::INTEGER
        RETURNING task_steps.task_execution_id AS id, task_steps.name, task_steps.number
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
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
            task.pipeline_execution_id AS pipeline_execution_id,
            task.id AS id,
            'task_rewound',
            CAST(
                coalesce(CAST(%(data)s::VARCHAR AS JSONB), '{}') || jsonb_strip_nulls(
                    jsonb_build_object('number', CAST(%(number)s::INTEGER AS INTEGER))
                ) AS TEXT
            ) AS anon_1,
            NULL AS anon_2,
            NULL AS anon__1,
            (SELECT clock.now FROM clock) AS anon_3
        FROM task
    )
SELECT gone.id, gone.name, gone.number
FROM gone
