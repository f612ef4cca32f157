WITH
    moved AS (
        UPDATE task_executions
        SET position=(
            SELECT found.recorded
            FROM (
                SELECT
                    execution_events.sequence_num AS sequence_num,
                    CAST(CAST(execution_events.event_data AS JSONB) ->> 'position' AS BIGINT) AS recorded
                FROM execution_events
                WHERE
                    execution_events.task_execution_id = task_executions.id
                    AND execution_events.lease_token IS NULL
                    AND execution_events.event_data LIKE '%%"position"%%'
                    AND (CAST(execution_events.event_data AS JSONB) ->> 'position') IS NOT NULL
            ) AS found
            ORDER BY found.sequence_num + 0 DESC
            LIMIT %(param_1)s::INTEGER
        )
        WHERE
            task_executions.partition_key IS NOT NULL
            AND task_executions.position != (/* checks.execution_events-1: param_1 */)
        RETURNING
            task_executions.id,
            task_executions.queue,
            task_executions.priority,
            task_executions.partition_key,
            task_executions.position,
            task_executions.topic,
            task_executions.expires_at
    ),
    gone AS (
        DELETE FROM task_outbox
        WHERE task_outbox.task_execution_id = any(array((SELECT moved.id FROM moved)))
        RETURNING task_outbox.task_execution_id AS id, task_outbox.available_at
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
            moved.id AS id,
            moved.queue AS queue,
            moved.priority AS priority,
            moved.partition_key AS partition_key,
            moved.position AS position,
            moved.topic AS topic,
            moved.expires_at AS expires_at,
            CAST(gone.available_at AS TIMESTAMP WITH TIME ZONE) AS available_at,
            (SELECT clock.now FROM clock) AS anon_1
        FROM moved
        JOIN gone ON moved.id = gone.id
        WHERE true
    )
SELECT
    moved.id,
    moved.queue,
    moved.priority,
    moved.partition_key,
    moved.position,
    moved.topic,
    moved.expires_at
FROM moved
