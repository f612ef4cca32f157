-- task
SELECT
    task_executions.id,
    task_executions.queue,
    task_executions.priority,
    task_executions.partition_key,
    task_executions.position,
    task_executions.topic,
    task_executions.expires_at,
    (/* repairs.due-1: param_1, param_2 */) AS due
FROM task_executions
JOIN task_outbox ON task_outbox.task_execution_id = task_executions.id
WHERE
    task_executions.status = 'Ready'
    AND (/* repairs.execution_events-1: param_3, param_4 */) = task_executions.status
    AND task_outbox.available_at != (/* repairs.due-1: param_1, param_5 */);

-- gone
WITH task AS MATERIALIZED (
    SELECT task_rows."key" AS ordinal, task_rows.value AS id
    FROM json_each(:task) AS task_rows
)
DELETE FROM task_outbox
WHERE task_outbox.task_execution_id IN (SELECT task.id FROM task)
RETURNING task_execution_id AS id;

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
            json_extract(task_rows.value, '$[6]') AS expires_at,
            json_extract(task_rows.value, '$[7]') AS due
        FROM json_each(:task) AS task_rows
    ),
    gone AS MATERIALIZED (
        SELECT gone_rows."key" AS ordinal, gone_rows.value AS id
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
    CAST(task.due AS TEXT) AS due,
    :now AS anon_1
FROM task
JOIN gone ON task.id = gone.id
WHERE 1 = 1
