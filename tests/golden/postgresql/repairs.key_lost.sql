WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    again AS (
        INSERT INTO idempotency_keys (scope, key, task_execution_id, expires_at, until_finished, created_at)
        SELECT
            task_executions.task_name AS task_name,
            CAST(birth.event_data AS JSONB) ->> 'idempotency_key' AS anon_1,
            task_executions.id AS id,
            CAST(CAST(birth.event_data AS JSONB) ->> 'unique_until' AS TIMESTAMP WITH TIME ZONE) AS anon_2,
            (CAST(birth.event_data AS JSONB) ->> 'unique_until_finished') IS NOT NULL AS anon_3,
            task_executions.created_at AS created_at
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
        ON CONFLICT (scope, key) DO UPDATE SET task_execution_id = excluded.task_execution_id, expires_at = excluded.expires_at, until_finished = excluded.until_finished, created_at = excluded.created_at
        RETURNING idempotency_keys.task_execution_id AS id
    )
SELECT again.id
FROM again
