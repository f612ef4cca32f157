WITH
    gone AS (
        DELETE FROM task_outbox
        WHERE EXISTS (/* checks.task_executions-1 */)
        RETURNING task_outbox.task_execution_id AS id, task_outbox.available_at
    ),
    task AS MATERIALIZED (
        SELECT
            task_executions.id AS id,
            task_executions.queue AS queue,
            task_executions.priority AS priority,
            task_executions.partition_key AS partition_key,
            task_executions.position AS position,
            task_executions.topic AS topic,
            task_executions.expires_at AS expires_at
        FROM task_executions
        WHERE task_executions.id = any(array((SELECT gone.id FROM gone)))
    ),
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    again AS (
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
            task.id AS id,
            task.queue AS queue,
            task.priority AS priority,
            task.partition_key AS partition_key,
            task.position AS position,
            task.topic AS topic,
            task.expires_at AS expires_at,
            CAST(gone.available_at AS TIMESTAMP WITH TIME ZONE) AS available_at,
            (SELECT clock.now FROM clock) AS anon_1
        FROM task
        JOIN gone ON task.id = gone.id
        WHERE true
    )
SELECT gone.id, gone.available_at
FROM gone
