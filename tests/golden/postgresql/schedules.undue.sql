SELECT task_outbox.id AS entry_id, schedule_ticks.tick
FROM schedule_ticks
JOIN task_executions ON task_executions.id = schedule_ticks.task_execution_id
JOIN task_outbox ON task_outbox.task_execution_id = task_executions.id
WHERE
    schedule_ticks.schedule = %(name)s::VARCHAR
    AND schedule_ticks.tick > %(earliest)s::TIMESTAMP WITH TIME ZONE
    AND (
        schedule_ticks.tick > %(moment)s::TIMESTAMP WITH TIME ZONE
            OR task_outbox.available_at > %(moment)s::TIMESTAMP WITH TIME ZONE
    )
    AND task_executions.first_started_at IS NULL
ORDER BY task_outbox.id
