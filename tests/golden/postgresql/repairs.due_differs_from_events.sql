WITH
    task AS MATERIALIZED (
        SELECT
            task_executions.id AS id,
            task_executions.queue AS queue,
            task_executions.priority AS priority,
            task_executions.partition_key AS partition_key,
            task_executions.position AS position,
            task_executions.topic AS topic,
            task_executions.expires_at AS expires_at,
            (/* repairs.due-1: param_1 */) AS due
        FROM task_executions
        JOIN task_outbox ON task_outbox.task_execution_id = task_executions.id
        WHERE
            task_executions.status = 'Ready'
            AND (/* repairs.execution_events-1: param_2 */) = task_executions.status
            AND task_outbox.available_at != (
                SELECT found.recorded
                FROM (
                    SELECT
                        execution_events.sequence_num AS sequence_num,
                        CAST(
                            (CAST(execution_events.event_data AS JSONB) ->> 'available_at') AS TIMESTAMP WITH TIME ZONE
                        ) AS recorded
                    FROM execution_events
                    WHERE
                        execution_events.task_execution_id = task_executions.id
                        AND execution_events.event_type = 'task_claimed'
                        AND execution_events.event_type IN (
                            'task_created',
                            'task_claimed',
                            'task_completed',
                            'task_retry_scheduled',
                            'task_failed',
                            'task_reset',
                            'task_abandoned',
                            'task_released',
                            'task_snoozed',
                            'task_cancelled',
                            'task_expired',
                            'task_discarded',
                            'task_replaced',
                            'task_requeued',
                            'task_rescheduled'
                        )
                    UNION ALL
                    SELECT
                        execution_events.sequence_num AS sequence_num,
                        CAST(
                            (CAST(execution_events.event_data AS JSONB) ->> 'available_at') AS TIMESTAMP WITH TIME ZONE
                        ) AS recorded
                    FROM execution_events
                    WHERE
                        execution_events.task_execution_id = task_executions.id
                        AND execution_events.event_type != 'task_claimed'
                        AND execution_events.lease_token IS NOT NULL
                        AND execution_events.event_type IN (
                            'task_created',
                            'task_claimed',
                            'task_completed',
                            'task_retry_scheduled',
                            'task_failed',
                            'task_reset',
                            'task_abandoned',
                            'task_released',
                            'task_snoozed',
                            'task_cancelled',
                            'task_expired',
                            'task_discarded',
                            'task_replaced',
                            'task_requeued',
                            'task_rescheduled'
                        )
                    UNION ALL
                    SELECT
                        execution_events.sequence_num AS sequence_num,
                        CAST(
                            (CAST(execution_events.event_data AS JSONB) ->> 'available_at') AS TIMESTAMP WITH TIME ZONE
                        ) AS recorded
                    FROM execution_events
                    WHERE
                        execution_events.task_execution_id = task_executions.id
                        AND execution_events.lease_token IS NULL
                        AND execution_events.event_type IN (
                            'task_created',
                            'task_claimed',
                            'task_completed',
                            'task_retry_scheduled',
                            'task_failed',
                            'task_reset',
                            'task_abandoned',
                            'task_released',
                            'task_snoozed',
                            'task_cancelled',
                            'task_expired',
                            'task_discarded',
                            'task_replaced',
                            'task_requeued',
                            'task_rescheduled'
                        )
                ) AS found
                ORDER BY found.sequence_num + 0 DESC
                LIMIT %(param_1)s::INTEGER
            )
        FOR UPDATE OF task_executions
    ),
    gone AS (
        DELETE FROM task_outbox
        WHERE task_outbox.task_execution_id = any(array((SELECT task.id FROM task)))
        RETURNING task_outbox.task_execution_id AS id
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
            CAST(task.due AS TIMESTAMP WITH TIME ZONE) AS due,
            (SELECT clock.now FROM clock) AS anon_1
        FROM task
        JOIN gone ON task.id = gone.id
        WHERE true
    )
SELECT
    task.id,
    task.queue,
    task.priority,
    task.partition_key,
    task.position,
    task.topic,
    task.expires_at,
    task.due
FROM task
