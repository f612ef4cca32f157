SELECT task_executions.id
FROM task_executions
JOIN execution_events AS birth ON birth.task_execution_id = task_executions.id
WHERE
    task_executions.status IN ('Ready', 'Running')
    AND birth.lease_token IS NULL
    AND birth.event_type = 'task_created'
    AND birth.event_data LIKE '%"idempotency_key"%'
    AND json_extract(birth.event_data, '$.idempotency_key') IS NOT NULL
    AND (
        json_extract(birth.event_data, '$.unique_until') IS NULL
            OR json_extract(birth.event_data, '$.unique_until') > :now
    )
    AND NOT (
        json_extract(birth.event_data, '$.unique_until_finished') IS NOT NULL
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
    AND NOT (
        EXISTS (
            SELECT idempotency_keys.task_execution_id
            FROM idempotency_keys
            WHERE
                idempotency_keys.scope = task_executions.task_name
                AND idempotency_keys."key" = json_extract(birth.event_data, '$.idempotency_key')
                AND (
                    idempotency_keys.task_execution_id = task_executions.id
                        OR (
                            EXISTS (
                                SELECT other.task_execution_id
                                FROM execution_events AS other
                                WHERE
                                    other.task_execution_id = idempotency_keys.task_execution_id
                                    AND other.lease_token IS NULL
                                    AND other.event_type = 'task_created'
                                    AND other.event_data LIKE '%"idempotency_key"%'
                                    AND json_extract(other.event_data, '$.idempotency_key') IS NOT NULL
                                    AND json_extract(other.event_data, '$.idempotency_key') = json_extract(
                                        birth.event_data,
                                        '$.idempotency_key'
                                    )
                            )
                        )
                )
        )
    )
