WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    given AS (
        SELECT batch.id AS id, batch.data AS data, batch.ordinal AS ordinal
        FROM unnest(%(given_id)s::UUID[], %(given_data)s::TEXT[]) WITH ORDINALITY AS batch(id, data, ordinal)
    ),
    asked AS (
        UPDATE task_executions
        SET
            cancel_requested_at=(SELECT clock.now FROM clock),
            updated_at=(SELECT clock.now FROM clock)
        WHERE
            task_executions.id = any(array((SELECT given.id FROM given)))
            AND task_executions.status = 'Running'
            AND task_executions.cancel_requested_at IS NULL
        RETURNING task_executions.id, task_executions.pipeline_execution_id
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
            asked.pipeline_execution_id AS pipeline_execution_id,
            asked.id AS id,
            'task_cancel_requested',
            given.data AS data,
            NULL AS anon_1,
            NULL AS anon__1,
            (SELECT clock.now FROM clock) AS anon_2
        FROM asked
        JOIN given ON asked.id = given.id
    )
SELECT asked.id, asked.pipeline_execution_id
FROM asked
