WITH
    mine AS MATERIALIZED (
        SELECT
            task_executions.id AS id,
            task_executions.status AS status,
            task_executions.queue AS queue,
            task_executions.task_name AS task_name,
            task_executions.partition_key AS partition_key,
            task_executions.topic AS topic
        FROM task_executions
        WHERE
            task_executions.pipeline_execution_id = :batch
            AND task_executions.pipeline_execution_id != task_executions.id
    ),
    page AS MATERIALIZED (/* task_pages.page-4: param_1, param_2 */)
SELECT
    task_executions.id,
    task_executions.status,
    task_executions.created_at,
    task_executions.first_started_at,
    task_executions.started_at,
    task_executions.completed_at
FROM task_executions
WHERE task_executions.id IN (SELECT page.id FROM page)
