WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT task_outbox.id
FROM task_outbox
WHERE
    task_outbox.created_at > (SELECT clock.now FROM clock) + 1.0 * interval '1 second'
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
LIMIT %(param_1)s::INTEGER
