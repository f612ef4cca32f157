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
            WHERE sqlite_sequence.name = 'task_outbox'
        ),
        0
    ) + 1 AS anon_4,
    :available_at AS anon_5,
    :now AS anon_6;

-- execution
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
    (
        SELECT task_outbox.position
        FROM task_outbox
        WHERE task_outbox.task_execution_id = :id
    ) AS anon_4,
    :priority AS anon_5,
    :args AS anon_6,
    :headers AS anon_7,
    'Ready',
    1,
    :max_attempts AS anon_8,
    0,
    :lease_seconds AS anon_9,
    :timeout_seconds AS anon_10,
    0,
    :on_dead_letter AS anon_11,
    NULL AS anon_12,
    :now AS anon_13,
    :now AS anon_14;

-- event
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
    json_object('available_at', :available_at) AS json_object_1,
    NULL AS anon_2,
    NULL AS anon__2,
    :now AS anon_3
