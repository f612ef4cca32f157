WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
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
            task_executions.id AS id,
            task_executions.queue AS queue,
            task_executions.priority AS priority,
            task_executions.partition_key AS partition_key,
            task_executions.position AS position,
            task_executions.topic AS topic,
            task_executions.expires_at AS expires_at,
            coalesce((/* repairs.due-1: param_1 */), (SELECT clock.now FROM clock)) AS coalesce_1,
            (SELECT clock.now FROM clock) AS anon_1
        FROM task_executions
        WHERE
            task_executions.status = 'Ready'
            AND NOT (
                EXISTS (
                    SELECT task_outbox.id
                    FROM task_outbox
                    WHERE task_outbox.task_execution_id = task_executions.id
                )
            )
        FOR UPDATE OF task_executions
        ON CONFLICT DO NOTHING
        RETURNING task_outbox.task_execution_id AS id
    )
SELECT entry.id
FROM entry
