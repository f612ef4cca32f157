WITH recent AS MATERIALIZED (
    SELECT schedule_ticks.tick AS tick, schedule_ticks.task_execution_id AS task_execution_id
    FROM schedule_ticks
    WHERE schedule_ticks.schedule = :name AND schedule_ticks.tick > :earliest
)
SELECT task_outbox.id AS entry_id, recent.tick
FROM recent
JOIN task_executions ON task_executions.id = recent.task_execution_id
JOIN task_outbox ON task_outbox.task_execution_id = task_executions.id
WHERE
    task_executions.id IN (SELECT recent.task_execution_id FROM recent)
    AND task_outbox.task_execution_id IN (SELECT recent.task_execution_id FROM recent)
    AND (recent.tick > :moment OR task_outbox.available_at > :moment)
    AND task_executions.first_started_at IS NULL
ORDER BY task_outbox.id
