WITH
    doomed AS MATERIALIZED (
        SELECT task_executions.id AS id
        FROM task_executions
        WHERE
            task_executions.id > %(from_id)s::UUID
            AND task_executions.id < %(to_id)s::UUID
            AND task_executions.completed_at < %(before)s::TIMESTAMP WITH TIME ZONE
            AND (
                task_executions.status = 'Completed'
                    AND %(prune_completed)s::INTEGER = %(param_1)s::INTEGER
                    OR task_executions.status = 'Failed'
                    AND %(prune_failed)s::INTEGER = %(param_2)s::INTEGER
                    OR task_executions.status = 'Cancelled'
                    AND %(prune_cancelled)s::INTEGER = %(param_3)s::INTEGER
            )
            AND (task_executions.status = 'Failed' OR (/* retention.task_batches-1 */) IS NULL)
        ORDER BY task_executions.id
        LIMIT %(limit)s::BIGINT
        FOR UPDATE SKIP LOCKED
    ),
    keyed AS MATERIALIZED (
        SELECT idempotency_keys.task_execution_id AS id
        FROM idempotency_keys
        WHERE idempotency_keys.task_execution_id = any(array((SELECT doomed.id FROM doomed)))
    ),
    locked AS MATERIALIZED (
        SELECT idempotency_keys.task_execution_id AS id
        FROM idempotency_keys
        WHERE idempotency_keys.task_execution_id = any(array((SELECT doomed.id FROM doomed)))
        FOR UPDATE SKIP LOCKED
    ),
    free AS MATERIALIZED (
        SELECT doomed.id AS id
        FROM doomed
        LEFT OUTER JOIN keyed ON keyed.id = doomed.id
        LEFT OUTER JOIN locked ON locked.id = doomed.id
        WHERE keyed.id IS NULL OR locked.id IS NOT NULL
    ),
    executions AS (
        DELETE FROM task_executions
        WHERE task_executions.id = any(array((SELECT free.id FROM free)))
        RETURNING
            task_executions.id,
            task_executions.queue,
            task_executions.partition_key,
            task_executions.status
    ),
    claim_events AS (
        DELETE FROM execution_events
        WHERE
            execution_events.task_execution_id = any(array((SELECT executions.id FROM executions)))
            AND execution_events.event_type = 'task_claimed'
    ),
    end_events AS (
        DELETE FROM execution_events
        WHERE
            execution_events.task_execution_id = any(array((SELECT executions.id FROM executions)))
            AND execution_events.event_type != 'task_claimed'
            AND execution_events.lease_token IS NOT NULL
    ),
    other_events AS (
        DELETE FROM execution_events
        WHERE
            execution_events.task_execution_id = any(array((SELECT executions.id FROM executions)))
            AND execution_events.lease_token IS NULL
    ),
    keys AS (
        DELETE FROM idempotency_keys
        WHERE idempotency_keys.task_execution_id = any(array((SELECT executions.id FROM executions)))
    ),
    letters AS (
        DELETE FROM dead_letters
        WHERE dead_letters.task_execution_id = any(array((SELECT executions.id FROM executions)))
    ),
    claims AS (
        DELETE FROM partition_claims
        WHERE partition_claims.task_execution_id = any(array((SELECT executions.id FROM executions)))
    ),
    ticks AS (
        DELETE FROM schedule_ticks
        WHERE schedule_ticks.task_execution_id = any(array((SELECT executions.id FROM executions)))
    ),
    steps AS (
        DELETE FROM task_steps
        WHERE task_steps.task_execution_id = any(array((SELECT executions.id FROM executions)))
    )
SELECT doomed.id, executions.queue, executions.partition_key, executions.status
FROM doomed
LEFT OUTER JOIN executions ON executions.id = doomed.id
