-- entry
INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at)
SELECT
    :id AS anon_1,
    :queue AS anon_2,
    :priority AS anon_3,
    coalesce(
        (
            SELECT sqlite_sequence.seq
            FROM sqlite_sequence
            WHERE sqlite_sequence.name = :name_1
        ),
        0
    ) + 1 AS anon_4,
    :available_at AS anon_5,
    :now AS anon_6
RETURNING position, available_at;

-- execution
WITH entry AS MATERIALIZED (
    SELECT entry_rows."key" AS ordinal, entry_rows.value AS position
    FROM json_each(:entry) AS entry_rows
)
INSERT INTO task_executions (
    id,
    pipeline_execution_id,
    task_name,
    queue,
    position,
    priority,
    args,
    headers,
    status,
    attempt,
    max_attempts,
    recovery_attempts,
    lease_seconds,
    timeout_seconds,
    lease_token,
    on_dead_letter,
    expires_at,
    created_at,
    updated_at
)
SELECT
    :id AS anon_1,
    :id AS anon__1,
    :task_name AS anon_2,
    :queue AS anon_3,
    entry.position,
    :priority AS anon_4,
    :args AS anon_5,
    :headers AS anon_6,
    'Ready',
    1,
    :max_attempts AS anon_7,
    0,
    :lease_seconds AS anon_8,
    :timeout_seconds AS anon_9,
    0,
    :on_dead_letter AS anon_10,
    NULL AS anon_11,
    :now AS anon_12,
    :now AS anon_13
FROM entry;

-- event
WITH entry AS MATERIALIZED (
    SELECT entry_rows."key" AS ordinal, entry_rows.value AS available_at
    FROM json_each(:entry) AS entry_rows
)
INSERT INTO execution_events (
    pipeline_execution_id,
    task_execution_id,
    event_type,
    event_data,
    worker_id,
    lease_token,
    created_at
)
SELECT
    :id AS anon_1,
    :id AS anon__1,
    'task_created',
    json_object('available_at', entry.available_at) AS json_object_1,
    NULL AS anon_2,
    NULL AS anon__2,
    :now AS anon_3
FROM entry
