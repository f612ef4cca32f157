WITH tasks AS MATERIALIZED (
    SELECT tasks_rows."key" AS ordinal, tasks_rows.value AS id
    FROM json_each(:tasks) AS tasks_rows
)
SELECT
    task_executions.id,
    task_executions.task_name,
    task_executions.status,
    task_executions.attempt,
    task_executions.last_error,
    task_executions.result
FROM task_executions
WHERE
    task_executions.id IN (SELECT tasks.id FROM tasks)
    AND (:everything = 1 OR task_executions.status IN ('Cancelled', 'Completed', 'Failed'))
