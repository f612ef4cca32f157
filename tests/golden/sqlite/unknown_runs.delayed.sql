WITH page AS MATERIALIZED (
    SELECT
        task_outbox.id AS id,
        task_outbox.task_execution_id AS task_execution_id,
        task_outbox.queue AS queue,
        task_outbox.topic AS topic
    FROM task_outbox
    WHERE task_outbox.id > :after AND task_outbox.available_at > :now
    ORDER BY task_outbox.id
    LIMIT :limit
    OFFSET :param_1
)
SELECT
    page.id,
    page.queue,
    page.topic,
    task_executions.task_name,
    EXISTS (
        SELECT *
        FROM execution_events
        WHERE
            execution_events.task_execution_id = task_executions.id
            AND execution_events.lease_token = task_executions.lease_token
            AND execution_events.task_execution_id IN (SELECT page.task_execution_id FROM page)
            AND execution_events.event_type != 'task_claimed'
            AND execution_events.lease_token IS NOT NULL
            AND execution_events.event_type = 'task_released'
            AND json_extract(execution_events.event_data, '$.reason') = :json_extract_1
            AND NOT (
                EXISTS (
                    SELECT *
                    FROM execution_events AS other
                    WHERE
                        other.task_execution_id IN (SELECT page.task_execution_id FROM page)
                        AND other.task_execution_id = execution_events.task_execution_id
                        AND other.lease_token IS NULL
                        AND other.sequence_num > execution_events.sequence_num
                )
            )
    ) AS released
FROM page
JOIN task_executions ON task_executions.id = page.task_execution_id
WHERE task_executions.id IN (SELECT page.task_execution_id FROM page)
ORDER BY page.id
