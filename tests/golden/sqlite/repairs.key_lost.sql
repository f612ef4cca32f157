-- again
INSERT INTO idempotency_keys (scope, "key", task_execution_id, expires_at, until_finished, created_at)
SELECT
    task_executions.task_name,
    json_extract(birth.event_data, '$.idempotency_key') AS json_extract_1,
    task_executions.id,
    json_extract(birth.event_data, '$.unique_until') AS json_extract_2,
    json_extract(birth.event_data, '$.unique_until_finished') IS NOT NULL AS anon_1,
    task_executions.created_at
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
    AND NOT (EXISTS (/* checks.idempotency_keys-1 */))
ON CONFLICT (scope, "key") DO UPDATE SET task_execution_id = excluded.task_execution_id, expires_at = excluded.expires_at, until_finished = excluded.until_finished, created_at = excluded.created_at
RETURNING task_execution_id AS id
