WITH page AS MATERIALIZED (/* task_pages.page-1: param_1, param_2 */)
SELECT
    task_executions.id,
    task_executions.status,
    task_executions.created_at,
    task_executions.first_started_at,
    task_executions.started_at,
    task_executions.completed_at
FROM task_executions
WHERE task_executions.id IN (SELECT page.id FROM page)
