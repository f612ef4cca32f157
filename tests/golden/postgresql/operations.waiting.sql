WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT
    task_outbox.available_at <= (SELECT clock.now FROM clock) AS due,
    task_outbox.priority
FROM task_outbox
WHERE task_outbox.task_execution_id = %(task_id)s::UUID
