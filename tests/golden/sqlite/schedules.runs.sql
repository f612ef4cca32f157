WITH tasks AS MATERIALIZED (
    SELECT tasks_rows."key" AS ordinal, tasks_rows.value AS id
    FROM json_each(:tasks) AS tasks_rows
)
SELECT task_executions.id, task_executions.status, task_executions.started_at, task_executions.completed_at
FROM task_executions
WHERE task_executions.id IN (SELECT tasks.id FROM tasks)
