-- moved
UPDATE task_executions
SET position=(/* checks.execution_events-1: param_1, param_2 */)
WHERE
    task_executions.partition_key IS NOT NULL
    AND task_executions.position != (/* checks.execution_events-1: param_1, param_3 */)
RETURNING id, queue, priority, partition_key, position, topic, expires_at;

-- gone
WITH moved AS MATERIALIZED (
    SELECT moved_rows."key" AS ordinal, moved_rows.value AS id
    FROM json_each(:moved) AS moved_rows
)
DELETE FROM task_outbox
WHERE task_outbox.task_execution_id IN (SELECT moved.id FROM moved)
RETURNING task_execution_id AS id, available_at;

-- again
WITH
    moved AS MATERIALIZED (
        SELECT
            moved_rows."key" AS ordinal,
            json_extract(moved_rows.value, '$[0]') AS id,
            json_extract(moved_rows.value, '$[1]') AS queue,
            json_extract(moved_rows.value, '$[2]') AS priority,
            json_extract(moved_rows.value, '$[3]') AS partition_key,
            json_extract(moved_rows.value, '$[4]') AS position,
            json_extract(moved_rows.value, '$[5]') AS topic,
            json_extract(moved_rows.value, '$[6]') AS expires_at
        FROM json_each(:moved) AS moved_rows
    ),
    gone AS MATERIALIZED (
        SELECT
            gone_rows."key" AS ordinal,
            json_extract(gone_rows.value, '$[0]') AS id,
            json_extract(gone_rows.value, '$[1]') AS available_at
        FROM json_each(:gone) AS gone_rows
    )
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
    moved.id,
    moved.queue,
    moved.priority,
    moved.partition_key,
    moved.position,
    moved.topic,
    moved.expires_at,
    CAST(gone.available_at AS TEXT) AS available_at,
    :now AS anon_1
FROM moved
JOIN gone ON moved.id = gone.id
WHERE 1 = 1
