WITH recent AS MATERIALIZED (
    SELECT schedule_ticks.tick AS tick, schedule_ticks.task_execution_id AS task_execution_id
    FROM schedule_ticks
    WHERE
        schedule_ticks.schedule = %(name)s::VARCHAR
        AND schedule_ticks.tick > %(earliest)s::TIMESTAMP WITH TIME ZONE
)
SELECT task_outbox.id AS entry_id, recent.tick
FROM recent
JOIN task_executions ON task_executions.id = recent.task_execution_id
JOIN task_outbox ON task_outbox.task_execution_id = task_executions.id
WHERE
    task_executions.id = any(array((SELECT recent.task_execution_id FROM recent)))
    AND task_outbox.task_execution_id = any(array((SELECT recent.task_execution_id FROM recent)))
    AND (
        recent.tick > %(moment)s::TIMESTAMP WITH TIME ZONE
            OR task_outbox.available_at > %(moment)s::TIMESTAMP WITH TIME ZONE
    )
    AND task_executions.first_started_at IS NULL
ORDER BY task_outbox.id
