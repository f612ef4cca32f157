-- gone
DELETE FROM task_outbox
WHERE EXISTS (/* checks.task_executions-1 */)
RETURNING task_execution_id AS id, available_at;

-- task
WITH gone AS MATERIALIZED (
    SELECT gone_rows."key" AS ordinal, gone_rows.value AS id
    FROM json_each(:gone) AS gone_rows
)
SELECT
    task_executions.id,
    task_executions.queue,
    task_executions.priority,
    task_executions.partition_key,
    task_executions.position,
    task_executions.topic,
    task_executions.expires_at
FROM task_executions
WHERE task_executions.id IN (SELECT gone.id FROM gone);

-- again
WITH
    task AS MATERIALIZED (
        SELECT
            task_rows."key" AS ordinal,
            json_extract(task_rows.value, '$[0]') AS id,
            json_extract(task_rows.value, '$[1]') AS queue,
            json_extract(task_rows.value, '$[2]') AS priority,
            json_extract(task_rows.value, '$[3]') AS partition_key,
            json_extract(task_rows.value, '$[4]') AS position,
            json_extract(task_rows.value, '$[5]') AS topic,
            json_extract(task_rows.value, '$[6]') AS expires_at
        FROM json_each(:task) AS task_rows
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
    task.id,
    task.queue,
    task.priority,
    task.partition_key,
    task.position,
    task.topic,
    task.expires_at,
    CAST(gone.available_at AS TEXT) AS available_at,
    :now AS anon_1
FROM task
JOIN gone ON task.id = gone.id
WHERE 1 = 1
