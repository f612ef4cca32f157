-- doomed
SELECT task_executions.id
FROM task_executions
WHERE
    task_executions.id > :from_id
    AND task_executions.id < :to_id
    AND task_executions.completed_at < :before
    AND (
        task_executions.status = 'Completed'
            AND :prune_completed = :param_1
            OR task_executions.status = 'Failed'
            AND :prune_failed = :param_2
            OR task_executions.status = 'Cancelled'
            AND :prune_cancelled = :param_3
    )
    AND (task_executions.status = 'Failed' OR (/* retention.task_batches-1: printf_1 */) IS NULL)
ORDER BY task_executions.id
LIMIT :limit
OFFSET :param_4;

-- keyed
WITH doomed AS MATERIALIZED (
    SELECT doomed_rows."key" AS ordinal, doomed_rows.value AS id
    FROM json_each(:doomed) AS doomed_rows
)
SELECT idempotency_keys.task_execution_id AS id
FROM idempotency_keys
WHERE idempotency_keys.task_execution_id IN (SELECT doomed.id FROM doomed);

-- locked
WITH doomed AS MATERIALIZED (
    SELECT doomed_rows."key" AS ordinal, doomed_rows.value AS id
    FROM json_each(:doomed) AS doomed_rows
)
SELECT idempotency_keys.task_execution_id AS id
FROM idempotency_keys
WHERE idempotency_keys.task_execution_id IN (SELECT doomed.id FROM doomed);

-- free
WITH
    doomed AS MATERIALIZED (
        SELECT doomed_rows."key" AS ordinal, doomed_rows.value AS id
        FROM json_each(:doomed) AS doomed_rows
    ),
    keyed AS MATERIALIZED (
        SELECT keyed_rows."key" AS ordinal, keyed_rows.value AS id
        FROM json_each(:keyed) AS keyed_rows
    ),
    locked AS MATERIALIZED (
        SELECT locked_rows."key" AS ordinal, locked_rows.value AS id
        FROM json_each(:locked) AS locked_rows
    )
SELECT doomed.id
FROM doomed
LEFT OUTER JOIN keyed ON keyed.id = doomed.id
LEFT OUTER JOIN locked ON locked.id = doomed.id
WHERE keyed.id IS NULL OR locked.id IS NOT NULL;

-- executions
WITH free AS MATERIALIZED (
    SELECT free_rows."key" AS ordinal, free_rows.value AS id
    FROM json_each(:free) AS free_rows
)
DELETE FROM task_executions
WHERE task_executions.id IN (SELECT free.id FROM free)
RETURNING id, queue, partition_key, status;

-- claim_events
WITH executions AS MATERIALIZED (
    SELECT executions_rows."key" AS ordinal, executions_rows.value AS id
    FROM json_each(:executions) AS executions_rows
)
DELETE FROM execution_events
WHERE
    execution_events.task_execution_id IN (SELECT executions.id FROM executions)
    AND execution_events.event_type = 'task_claimed';

-- end_events
WITH executions AS MATERIALIZED (
    SELECT executions_rows."key" AS ordinal, executions_rows.value AS id
    FROM json_each(:executions) AS executions_rows
)
DELETE FROM execution_events
WHERE
    execution_events.task_execution_id IN (SELECT executions.id FROM executions)
    AND execution_events.event_type != 'task_claimed'
    AND execution_events.lease_token IS NOT NULL;

-- other_events
WITH executions AS MATERIALIZED (
    SELECT executions_rows."key" AS ordinal, executions_rows.value AS id
    FROM json_each(:executions) AS executions_rows
)
DELETE FROM execution_events
WHERE
    execution_events.task_execution_id IN (SELECT executions.id FROM executions)
    AND execution_events.lease_token IS NULL;

-- keys
WITH executions AS MATERIALIZED (
    SELECT executions_rows."key" AS ordinal, executions_rows.value AS id
    FROM json_each(:executions) AS executions_rows
)
DELETE FROM idempotency_keys
WHERE idempotency_keys.task_execution_id IN (SELECT executions.id FROM executions);

-- letters
WITH executions AS MATERIALIZED (
    SELECT executions_rows."key" AS ordinal, executions_rows.value AS id
    FROM json_each(:executions) AS executions_rows
)
DELETE FROM dead_letters
WHERE dead_letters.task_execution_id IN (SELECT executions.id FROM executions);

-- claims
WITH executions AS MATERIALIZED (
    SELECT executions_rows."key" AS ordinal, executions_rows.value AS id
    FROM json_each(:executions) AS executions_rows
)
DELETE FROM partition_claims
WHERE partition_claims.task_execution_id IN (SELECT executions.id FROM executions);

-- ticks
WITH executions AS MATERIALIZED (
    SELECT executions_rows."key" AS ordinal, executions_rows.value AS id
    FROM json_each(:executions) AS executions_rows
)
DELETE FROM schedule_ticks
WHERE schedule_ticks.task_execution_id IN (SELECT executions.id FROM executions);

-- steps
WITH executions AS MATERIALIZED (
    SELECT executions_rows."key" AS ordinal, executions_rows.value AS id
    FROM json_each(:executions) AS executions_rows
)
DELETE FROM task_steps
WHERE task_steps.task_execution_id IN (SELECT executions.id FROM executions)
