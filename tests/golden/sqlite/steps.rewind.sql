-- task
SELECT task_executions.id, task_executions.pipeline_execution_id
FROM task_executions
WHERE task_executions.id = :task_id;

-- gone
WITH task AS MATERIALIZED (
    SELECT task_rows."key" AS ordinal, task_rows.value AS id
    FROM json_each(:task) AS task_rows
)
DELETE FROM task_steps
WHERE
    task_steps.task_execution_id IN (SELECT task.id FROM task)
    AND task_steps.number >= :number
RETURNING task_execution_id AS id, name, number;

-- event
WITH task AS MATERIALIZED (
    SELECT
        task_rows."key" AS ordinal,
        json_extract(task_rows.value, '$[0]') AS id,
        json_extract(task_rows.value, '$[1]') AS pipeline_execution_id
    FROM json_each(:task) AS task_rows
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
    task.pipeline_execution_id,
    task.id,
    'task_rewound',
    json_patch(coalesce(:data, '{}'), json_object('number', CAST(:number AS INTEGER))) AS json_patch_1,
    NULL AS anon_1,
    NULL AS anon__1,
    :now AS anon_2
FROM task
