WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
SELECT task_executions.id
FROM task_executions
JOIN execution_events AS birth ON birth.task_execution_id = task_executions.id
WHERE
    task_executions.status IN ('Ready', 'Running')
    AND birth.lease_token IS NULL
    AND birth.event_type = 'task_created'
    AND birth.event_data LIKE '%%"idempotency_key"%%'
    AND (CAST(birth.event_data AS JSONB) ->> 'idempotency_key') IS NOT NULL
    AND (
        CAST((CAST(birth.event_data AS JSONB) ->> 'unique_until') AS TIMESTAMP WITH TIME ZONE) IS NULL
            OR CAST((CAST(birth.event_data AS JSONB) ->> 'unique_until') AS TIMESTAMP WITH TIME ZONE) > (
                SELECT clock.now FROM clock
            )
    )
    AND NOT (
        (CAST(birth.event_data AS JSONB) ->> 'unique_until_finished') IS NOT NULL
            AND (
                (
                    EXISTS (
                        SELECT execution_events.sequence_num
                        FROM execution_events
                        WHERE
                            execution_events.task_execution_id = task_executions.id
                            AND execution_events.event_type != 'task_claimed'
                            AND execution_events.lease_token IS NOT NULL
                            AND execution_events.event_type IN (
                                'task_completed',
                                'task_failed',
                                'task_abandoned',
                                'task_cancelled',
                                'task_expired',
                                'task_discarded'
                            )
                    )
                )
                    OR (
                        EXISTS (
                            SELECT execution_events.sequence_num
                            FROM execution_events
                            WHERE
                                execution_events.task_execution_id = task_executions.id
                                AND execution_events.lease_token IS NULL
                                AND execution_events.event_type IN (
                                    'task_completed',
                                    'task_failed',
                                    'task_abandoned',
                                    'task_cancelled',
                                    'task_expired',
                                    'task_discarded'
                                )
                        )
                    )
            )
    )
    AND NOT (EXISTS (/* checks.idempotency_keys-1 */))
