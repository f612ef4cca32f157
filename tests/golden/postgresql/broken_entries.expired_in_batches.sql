WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT
    task_outbox.id AS entry_id,
    (
        SELECT task_executions.pipeline_execution_id
        FROM task_executions
        WHERE task_executions.id = task_outbox.task_execution_id
    ) AS batch_id
FROM task_outbox
WHERE
    task_outbox.available_at <= (SELECT clock.now FROM clock)
    AND task_outbox.expires_at <= (SELECT clock.now FROM clock)
    AND (
        SELECT task_executions.pipeline_execution_id
        FROM task_executions
        WHERE task_executions.id = task_outbox.task_execution_id
    ) >= %(param_1)s::UUID
ORDER BY task_outbox.id
LIMIT %(limit)s::BIGINT
