SELECT running.id
FROM (
    SELECT
        task_executions.id AS id,
        row_number() OVER (
            PARTITION BY task_executions.queue, task_executions.partition_key
            ORDER BY task_executions.position DESC, task_executions.id
        ) AS nth
    FROM task_executions
    WHERE
        task_executions.partition_key IS NOT NULL
        AND task_executions.status = 'Running'
        AND substr(task_executions.partition_key, 1, 12) != 'concurrency:'
) AS running
WHERE running.nth > 1
