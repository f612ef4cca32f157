SELECT placed.id
FROM (
    SELECT
        task_executions.id AS id,
        row_number() OVER (
            PARTITION BY task_executions.queue, task_executions.partition_key, task_executions.position
            ORDER BY task_executions.id
        ) AS nth
    FROM task_executions
    WHERE task_executions.partition_key IS NOT NULL
) AS placed
WHERE placed.nth > 1
